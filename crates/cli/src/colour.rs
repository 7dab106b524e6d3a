//! Colours for a person at a terminal. They only repeat what the words say, and go nowhere else.

use std::io::IsTerminal;

/// Green: it is as it should be.
const WELL: &str = "32";
/// Yellow: not yet, or not quite.
const WAITING: &str = "33";
/// Red: it is not.
const WRONG: &str = "31";
/// Cyan: where it is.
const PLACE: &str = "36";

/// Words of states in columns.
const STATES: [(&str, &str); 9] = [
    ("Running", WELL),
    ("Succeeded", WELL),
    ("Available", WELL),
    ("Pending", WAITING),
    ("Terminating", WAITING),
    ("Warning", WAITING),
    ("Failed", WRONG),
    ("CrashLoopBackOff:", WRONG),
    ("Unschedulable:", WRONG),
];

/// Whether standard output is a terminal whose user wants colours (<https://no-color.org>).
pub(crate) fn is_wanted() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|it| !it.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|it| it == "dumb");
    std::io::stdout().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Colours the words of states in columns.
pub(crate) fn states(text: &str) -> String {
    let word = |word: &str| {
        let state = STATES.iter().find(|(state, _)| *state == word.trim_end());
        state.map_or_else(
            || word.to_owned(),
            |(state, colour)| format!("{}{}", painted(state, colour), &word[state.len()..]),
        )
    };
    text.split_inclusive([' ', '\n']).map(word).collect()
}

/// Colours the lines of a difference.
pub(crate) fn difference(text: &str) -> String {
    let line = |line: &str| {
        let content = line.trim_end_matches('\n');
        let colour = match content.as_bytes() {
            [b'+', ..] => WELL,
            [b'-', ..] => WRONG,
            [b'@', ..] => PLACE,
            _ => return line.to_owned(),
        };
        format!("{}{}", painted(content, colour), &line[content.len()..])
    };
    text.split_inclusive('\n').map(line).collect()
}

fn painted(text: &str, colour: &str) -> String {
    format!("\u{1b}[{colour}m{text}\u{1b}[0m")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_coloured_and_nothing_moves() {
        let text = "NAME     PHASE    REASON\nRunning-1  Running  -\na  Failed\n";
        let expected = "NAME     PHASE    REASON\nRunning-1  \u{1b}[32mRunning\u{1b}[0m  -\n\
                        a  \u{1b}[31mFailed\u{1b}[0m\n";
        assert_eq!(states(text), expected);
    }

    #[test]
    fn a_difference_is_red_and_green() {
        let expected = "\u{1b}[36m@@ -1 +1 @@\u{1b}[0m\n a\n\u{1b}[31m-b\u{1b}[0m\n\
                        \u{1b}[32m+c\u{1b}[0m\n";
        assert_eq!(difference("@@ -1 +1 @@\n a\n-b\n+c\n"), expected);
    }
}
