//! `docs/settings.md` has a row for every key, and for nothing else.

use crate::config::schema;

const PAGE: &str = include_str!("../../../docs/settings.md");

/// The first cells of the table under a heading.
fn documented(table: &str) -> Vec<&str> {
    let rest = PAGE.split_once(&format!("\n## {table}\n")).map_or("", |(_, rest)| rest);
    let section = rest.split_once("\n## ").map_or(rest, |(section, _)| section);
    section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(key, _)| key).collect()
}

#[test]
fn every_key_has_its_row() {
    for table in schema::ALL {
        let rows = documented(table.name);
        for key in table.keys {
            let found = rows.iter().filter(|row| *row == key).count();
            assert_eq!(
                found, 1,
                "docs/settings.md: under `## {}` add one row `| `{key}` | built in | ... |`",
                table.name
            );
        }
        for row in rows {
            assert!(
                table.keys.contains(&row),
                "docs/settings.md: `## {}` has a row for `{row}`, no key of it",
                table.name
            );
        }
    }
}

#[test]
fn every_heading_is_a_table_of_the_file() {
    for heading in PAGE.lines().filter_map(|line| line.strip_prefix("## ")) {
        assert!(schema::ALL.iter().any(|table| table.name == heading), "docs/settings.md: no table is named {heading}");
    }
}
