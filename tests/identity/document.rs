//! JSON documents by value, and as many spellings of each as there are seeds.

use std::collections::BTreeMap;

use proptest::prelude::*;

/// Two documents are equal if they mean the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Document {
    Word(&'static str),
    /// `digits * 10^exponent`; the digits do not end with a zero.
    Number {
        digits: i64,
        exponent: i32,
    },
    Text(String),
    List(Vec<Document>),
    Members(BTreeMap<String, Document>),
}

pub(crate) fn document() -> impl Strategy<Value = Document> {
    let word = prop::sample::select(vec!["null", "true", "false"]).prop_map(Document::Word);
    let number = (any::<i64>(), -30..30).prop_map(|(digits, exponent)| decimal(digits, exponent));
    let small = (-9i64..10).prop_map(|digits| decimal(digits, 0));
    let text = "[a-c\"\\\\/\n\u{1}\u{7f}é😀]{0,4}".prop_map(Document::Text);
    prop_oneof![word, number, small, text].prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Document::List),
            proptest::collection::btree_map("[a-b\"é]{0,2}", inner, 0..4).prop_map(Document::Members),
        ]
    })
}

fn decimal(mut digits: i64, mut exponent: i32) -> Document {
    while digits != 0 && digits % 10 == 0 {
        digits /= 10;
        exponent += 1;
    }
    Document::Number { digits, exponent: if digits == 0 { 0 } else { exponent } }
}

impl Document {
    /// One of its spellings: seed 0 is the plain one, others shuffle, escape, pad and move points.
    pub(crate) fn spell(&self, seed: u64) -> String {
        let mut text = String::new();
        self.write(&mut Whims(seed), &mut text);
        text
    }

    fn write(&self, whims: &mut Whims, text: &mut String) {
        text.push_str(whims.space());
        match self {
            Self::Word(word) => text.push_str(word),
            Self::Number { digits, exponent } => whims.number(*digits, *exponent, text),
            Self::Text(plain) => whims.string(plain, text),
            Self::List(items) => join(["[", "]"], items, text, |item, text| item.write(whims, text)),
            Self::Members(members) => {
                let mut members: Vec<_> = members.iter().collect();
                whims.shuffle(&mut members);
                join(["{", "}"], &members, text, |(name, member), text| {
                    text.push_str(whims.space());
                    whims.string(name, text);
                    text.push_str(whims.space());
                    text.push(':');
                    member.write(whims, text);
                });
            }
        }
        text.push_str(whims.space());
    }
}

fn join<T>([open, close]: [&str; 2], items: &[T], text: &mut String, mut write: impl FnMut(&T, &mut String)) {
    text.push_str(open);
    for (place, item) in items.iter().enumerate() {
        text.push_str(if place == 0 { "" } else { "," });
        write(item, text);
    }
    text.push_str(close);
}

/// Choices that follow from the seed; all zero for seed 0.
struct Whims(u64);

impl Whims {
    fn choose(&mut self, among: u64) -> u64 {
        if self.0 == 0 {
            return 0;
        }
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) | 1;
        (self.0 >> 33) % among
    }

    fn space(&mut self) -> &'static str {
        ["", " ", "\t", "\r\n"][usize::try_from(self.choose(4)).unwrap()]
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for place in 1..items.len() {
            items.swap(place, place - usize::try_from(self.choose(place as u64 + 1)).unwrap());
        }
    }

    fn string(&mut self, plain: &str, text: &mut String) {
        text.push('"');
        for letter in plain.chars() {
            let must = letter < ' ' || letter == '"' || letter == '\\';
            if must || self.choose(3) == 1 {
                letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04X}")));
            } else {
                text.push(letter);
            }
        }
        text.push('"');
    }

    fn number(&mut self, digits: i64, exponent: i32, text: &mut String) {
        let zeros = usize::try_from(self.choose(4)).unwrap();
        let fraction = if self.choose(2) == 1 { ".00" } else { "" };
        let shift = i32::try_from(zeros).unwrap();
        let sign = if self.choose(2) == 1 && exponent >= shift { "+" } else { "" };
        let letter = if self.choose(2) == 1 { "E" } else { "e" };
        let zeros = if digits == 0 { "" } else { &"000"[..zeros] };
        text.push_str(&format!("{digits}{zeros}{fraction}{letter}{sign}{}", exponent - shift));
    }
}
