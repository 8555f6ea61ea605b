//! Standard output, for what commands have to say.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a line. A reader that has read enough (`oncegate check | head`) is no error.
pub(super) fn say(line: impl Display) {
    writeln!(io::stdout(), "{line}").unwrap_or_default();
}
