//! One Rust file as the rules see it: the names it uses outside its own tests, each with its line.

use std::path::Path;

use proc_macro2::{Delimiter, Group, Ident, Spacing, TokenStream, TokenTree};

/// A name in use. Imports are spelled out to one path each and `super`, `self` and `oncegate` are resolved, so that
/// `crate::layer::...` is the only spelling of an own item. A method is written `.name`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mention {
    pub(crate) path: String,
    pub(crate) line: usize,
}

impl Mention {
    /// Whether `segments` occur in the path one after the other: `std::env` in `std::env::var`.
    pub(crate) fn has(&self, segments: &str) -> bool {
        format!("::{}::", self.path).contains(&format!("::{segments}::"))
    }
}

/// A file of `src`.
pub(crate) struct Source {
    /// Relative to the repository, with forward slashes.
    pub(crate) file: String,
    /// First module below the crate's root, `main` for the binary; empty for `lib.rs`.
    pub(crate) layer: String,
    pub(crate) mentions: Vec<Mention>,
    /// Names of its modules that only tests compile, and that live in files of their own.
    pub(crate) test_modules: Vec<String>,
}

impl Source {
    pub(crate) fn parse(file: &str, text: &str) -> Self {
        let module = module_of(file);
        let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut scan = Scan { module: module.clone(), mentions: Vec::new(), test_modules: Vec::new() };
        scan.tokens(&tokens.into_iter().collect::<Vec<_>>());
        Self {
            file: file.to_owned(),
            layer: module.first().cloned().unwrap_or_default(),
            mentions: scan.mentions,
            test_modules: scan.test_modules.iter().map(|name| [module.join("/"), name.clone()].join("/")).collect(),
        }
    }

    /// Whether one of `test_modules` (as paths below `src`) holds this file.
    pub(crate) fn is_within(&self, test_modules: &[String]) -> bool {
        let module = format!("{}/", module_of(&self.file).join("/"));
        test_modules.iter().any(|name| module.starts_with(&format!("{}/", name.trim_start_matches('/'))))
    }
}

/// `src/engine/claim.rs` is `engine, claim`.
fn module_of(file: &str) -> Vec<String> {
    let path = Path::new(file).strip_prefix("src").unwrap_or(Path::new(file)).with_extension("");
    let mut module: Vec<_> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

struct Scan {
    module: Vec<String>,
    mentions: Vec<Mention>,
    test_modules: Vec<String>,
}

impl Scan {
    fn tokens(&mut self, mut rest: &[TokenTree]) {
        while !rest.is_empty() {
            let used = self.step(rest);
            rest = &rest[used..];
        }
    }

    /// Takes one construct off the front and says how many tokens it had.
    fn step(&mut self, rest: &[TokenTree]) -> usize {
        match rest {
            [TokenTree::Punct(hash), TokenTree::Group(attribute), item @ ..]
                if hash.as_char() == '#' && is_test_only(attribute) =>
            {
                2 + self.skip_item(item)
            }
            [TokenTree::Ident(word), tree @ ..] if word == "use" => {
                let length = tree.iter().take_while(|token| !is_punct(token, ';')).count();
                self.import(&tree[..length], &[]);
                1 + length
            }
            [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Group(body), ..] if word == "mod" => {
                self.module.push(name.to_string());
                self.group(body);
                self.module.pop();
                3
            }
            [TokenTree::Punct(dot), TokenTree::Ident(method), ..] if dot.as_char() == '.' => {
                self.mention(vec![format!(".{method}")], method);
                2
            }
            [TokenTree::Ident(first), ..] => self.path(first, rest),
            [TokenTree::Group(group), ..] => {
                self.group(group);
                1
            }
            _ => 1,
        }
    }

    fn group(&mut self, group: &Group) {
        self.tokens(&group.stream().into_iter().collect::<Vec<_>>());
    }

    /// The item behind `#[cfg(test)]` ends with its braces or its semicolon.
    fn skip_item(&mut self, rest: &[TokenTree]) -> usize {
        let is_body =
            |token: &TokenTree| matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
        let end = rest.iter().position(|token| is_body(token) || is_punct(token, ';'));
        let item = end.map_or(rest, |end| &rest[..=end]);
        if let [.., TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Punct(_)] = item
            && word == "mod"
        {
            self.test_modules.push(name.to_string());
        }
        item.len()
    }

    /// One use tree: `a::{b, c::d as e}` is `a::b` and `a::c::d`.
    fn import(&mut self, tree: &[TokenTree], prefix: &[String]) {
        let mut path = prefix.to_vec();
        let mut last = None;
        for token in tree {
            match token {
                TokenTree::Ident(word) if word == "as" => break,
                TokenTree::Ident(word) => {
                    path.push(word.to_string());
                    last = Some(word);
                }
                TokenTree::Group(group) => {
                    let inner: Vec<_> = group.stream().into_iter().collect();
                    inner.split(|token| is_punct(token, ',')).for_each(|branch| self.import(branch, &path));
                    return;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
        if let Some(last) = last {
            self.mention(path, last);
        }
    }

    /// A path in code: identifiers joined by `::`.
    fn path(&mut self, first: &Ident, rest: &[TokenTree]) -> usize {
        let mut path = vec![first.to_string()];
        let mut used = 1;
        while let [TokenTree::Punct(one), TokenTree::Punct(two), TokenTree::Ident(next), ..] = &rest[used..]
            && one.as_char() == ':'
            && one.spacing() == Spacing::Joint
            && two.as_char() == ':'
        {
            path.push(next.to_string());
            used += 3;
        }
        self.mention(path, first);
        used
    }

    fn mention(&mut self, path: Vec<String>, place: &Ident) {
        let line = place.span().start().line;
        self.mentions.push(Mention { path: self.resolve(path).join("::"), line });
    }

    fn resolve(&self, path: Vec<String>) -> Vec<String> {
        let ups = path.iter().take_while(|part| *part == "super").count();
        let base: &[String] = match path[0].as_str() {
            "oncegate" if path.len() > 1 => return [vec!["crate".to_owned()], path[1..].to_vec()].concat(),
            "super" => &self.module[..self.module.len().saturating_sub(ups)],
            "self" if path.len() > 1 => &self.module,
            _ => return path,
        };
        [&["crate".to_owned()], base, &path[ups.max(1)..]].concat()
    }
}

fn is_test_only(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text == "cfg(test)" || text.starts_with("cfg(all(test,") || text == "test" || text == "tokio::test"
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_import_is_one_full_path() {
        let text = "use crate::{store::Store, engine::{self, run as go}};\nfn f() { super::other::g(self::h()); }";
        assert_eq!(
            paths("src/engine/claim.rs", text),
            [
                "crate::store::Store",
                "crate::engine::self",
                "crate::engine::run",
                "fn",
                "f",
                "crate::engine::other::g",
                "crate::engine::claim::h"
            ]
        );
        assert_eq!(paths("src/engine/mod.rs", "mod a { use super::super::server::B; }"), ["crate::server::B"]);
        assert_eq!(paths("src/main.rs", "fn m() { oncegate::app::run(); }")[2], "crate::app::run");
    }

    #[test]
    fn comments_strings_and_tests_are_not_read() {
        let text = r##"
            // crate::server
            /* crate::server */
            const TEXT: &str = r#"crate::server"#;
            #[cfg(test)]
            mod tests { use crate::server::B; }
            #[cfg(test)]
            use crate::worker::C;
            fn last() { x.unwrap(); }
        "##;
        let source = Source::parse("src/store/mod.rs", text);
        assert!(source.mentions.iter().all(|mention| !mention.has("crate")), "{:?}", source.mentions);
        assert_eq!(source.mentions.last(), Some(&Mention { path: ".unwrap".to_owned(), line: 9 }));
    }

    #[test]
    fn files_of_test_modules_are_told_apart() {
        let parent =
            Source::parse("src/store/mod.rs", "#[cfg(test)]\nmod contract;\n#[cfg(test)]\npub mod faults;\nmod file;");
        assert_eq!(parent.test_modules, ["store/contract", "store/faults"]);
        assert!(Source::parse("src/store/contract/cases.rs", "").is_within(&parent.test_modules));
        assert!(!Source::parse("src/store/file.rs", "").is_within(&parent.test_modules));
    }

    fn paths(file: &str, text: &str) -> Vec<String> {
        Source::parse(file, text).mentions.into_iter().map(|mention| mention.path).collect()
    }
}
