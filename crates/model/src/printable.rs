//! Which characters of a foreign text may be printed to a terminal.
//!
//! Names come from peers and from other people's objects. A control character in one can rewrite
//! what a terminal shows; a bidi override or an invisible one makes a name look like another.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether the character is shown as itself: no control character (C0, DEL, C1), no line or
/// paragraph separator, nothing that turns the direction of text, nothing invisible.
pub fn is_printable(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// The text with everything that is not printable as `\u{...}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_printable(character) {
            shown.push(character);
        } else {
            write!(shown, "\\u{{{:x}}}", u32::from(character)).expect("a string takes everything");
        }
    }
    Cow::Owned(shown)
}

/// [`printable`] for whole outputs, whose lines and columns are meant: line feed and tab stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let is_layout = |character| matches!(character, '\n' | '\t');
    if text.chars().all(|it| is_layout(it) || is_printable(it)) {
        return Cow::Borrowed(text);
    }
    let pieces = text.split_inclusive(is_layout).map(|piece| {
        let end = piece.strip_suffix(is_layout).map_or("", |it| &piece[it.len()..]);
        let shown = printable(&piece[..piece.len() - end.len()]).into_owned();
        shown + end
    });
    Cow::Owned(pieces.collect())
}

/// The same for JSON, which stays JSON with the same meaning: unprintable characters are inside
/// quotes, where JSON has escapes for them. Line feeds between values stay.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    if json.chars().all(|it| it == '\n' || is_printable(it)) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if character == '\n' || is_printable(character) {
            shown.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            write!(shown, "\\u{unit:04x}").expect("a string takes everything");
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_deceives_is_shown_as_a_number() {
        let check = |text: &str, expected: &str| assert_eq!(printable(text), expected);
        check("web-1.shop é 見", "web-1.shop é 見");
        check("a\u{1b}[2J\u{7}b", "a\\u{1b}[2J\\u{7}b");
        check("\u{7f}\u{9b}31m\n", "\\u{7f}\\u{9b}31m\\u{a}");
        check("safe\u{202e}gnp.exe\u{2066}\u{200b}", "safe\\u{202e}gnp.exe\\u{2066}\\u{200b}");
    }

    #[test]
    fn json_stays_json() {
        let shown = printable_json("{\n  \"a\": \"b\u{9b}\u{202e}\u{e0001}\"\n}\n");
        assert_eq!(shown, "{\n  \"a\": \"b\\u009b\\u202e\\udb40\\udc01\"\n}\n");
    }

    #[test]
    fn lines_and_columns_of_an_output_stay() {
        assert_eq!(printable_lines("a\tb\n\nc\u{1b}\r\nd"), "a\tb\n\nc\\u{1b}\\u{d}\nd");
        assert!(matches!(printable_lines("a\n"), Cow::Borrowed(_)));
    }
}
