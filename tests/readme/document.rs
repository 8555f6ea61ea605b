//! README.md as a reader sees it: blocks, commands with their output, tables, links.

use std::fmt;

pub(crate) struct Document {
    text: String,
    pub(crate) blocks: Vec<Block>,
}

/// What stands between two fences.
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) text: String,
    /// Of the first fence.
    pub(crate) line: usize,
}

/// A command and what it is shown to say.
pub(crate) struct Shown {
    pub(crate) command: String,
    pub(crate) output: Output,
}

/// Lines, of which `...` stands for any others.
pub(crate) struct Output(Vec<String>);

impl Document {
    pub(crate) fn parse(text: &str) -> Self {
        let mut blocks: Vec<Block> = Vec::new();
        let mut is_open = false;
        for (index, line) in text.lines().enumerate() {
            match (line.strip_prefix("```"), blocks.last_mut()) {
                (Some(_), _) if is_open => is_open = false,
                (Some(language), _) => {
                    is_open = true;
                    blocks.push(Block { language: language.to_owned(), text: String::new(), line: index + 1 });
                }
                (None, Some(block)) if is_open => block.text += &format!("{line}\n"),
                (None, _) => {}
            }
        }
        assert!(!is_open, "a block does not end");
        Self { text: text.to_owned(), blocks }
    }

    /// The cells of each row of the table with this head.
    pub(crate) fn rows_below(&self, head: &str) -> Vec<Vec<String>> {
        let rows = self.text.lines().skip_while(|line| *line != head).skip(2).take_while(|line| line.starts_with('|'));
        rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
    }

    /// The targets of all links.
    pub(crate) fn links(&self) -> Vec<String> {
        let starts = self.text.split("](").skip(1);
        starts.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
    }
}

impl Block {
    pub(crate) fn commands(&self) -> Vec<Shown> {
        let mut commands: Vec<Shown> = Vec::new();
        for line in self.text.lines() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => {
                    commands.push(Shown { command: command.to_owned(), output: Output(Vec::new()) });
                }
                (None, Some(shown)) => shown.output.0.push(line.to_owned()),
                (None, None) => panic!("README.md:{}: output without a command", self.line),
            }
        }
        commands
    }
}

impl Output {
    /// Whether the command said this, but for what differs from run to run.
    pub(crate) fn is_like(&self, said: &str) -> bool {
        let said: Vec<_> = said.lines().map(steady).collect();
        let shown: Vec<_> = self.0.iter().map(|line| steady(line)).collect();
        matches(&shown, &said)
    }
}

fn matches(shown: &[String], said: &[String]) -> bool {
    match shown {
        [] => said.is_empty(),
        [dots, rest @ ..] if dots == "..." => (0..=said.len()).any(|skipped| matches(rest, &said[skipped..])),
        [line, rest @ ..] => said.first() == Some(line) && matches(rest, &said[1..]),
    }
}

/// A line with `#` for every digit of a measured time.
fn steady(line: &str) -> String {
    let line = line.trim_end();
    let Some((before, measured)) = line.split_once(", after ") else { return line.to_owned() };
    let Some((seconds, behind)) = measured.split_once(" s") else { return line.to_owned() };
    let digits: String = seconds.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
    format!("{before}, after {digits} s{behind}")
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

#[test]
fn a_difference_is_found() {
    let shown = Output(["a", "...", "took 1, after 1.3 s", "z"].map(str::to_owned).to_vec());
    assert!(shown.is_like("a\nb\nc\ntook 1, after 2.0 s\nz\n"));
    for other in ["", "a\nz", "b\ntook 1, after 1.3 s\nz", "a\ntook 2, after 1.3 s\nz", "a\ntook 1, after 1.3 s\nz\ny"]
    {
        assert!(!shown.is_like(other), "{other}");
    }
}
