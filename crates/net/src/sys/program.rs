//! The pages of the running program's file.

use std::io;
use std::ops::Range;

/// Gives back the pages of the program's file that this process has mapped: most of them are of its
/// start and never touched again. One that is needed is mapped again from the system's cache.
///
/// Says how many bytes of address space they are in.
pub(crate) fn give_back_pages() -> io::Result<usize> {
    let mut bytes = 0;
    for part in clean_parts(&std::fs::read_to_string("/proc/self/smaps")?) {
        bytes += part.len();
        let start = std::ptr::with_exposed_provenance_mut(part.start);
        // SAFETY: the pages are a file's that cannot be written while it is executed, this process
        // has changed none of them and may not: whatever reads them finds the same again.
        super::check(unsafe { libc::madvise(start, part.len(), libc::MADV_DONTNEED) })?;
    }
    Ok(bytes)
}

/// The private mappings of files that cannot be written and of which no page was changed: what the
/// loader has put its addresses into would be lost. Pages that are dirty and not anonymous are the
/// file's, which was written lately.
fn clean_parts(smaps: &str) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut is_file = false;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else { continue };
        let Some((start, end)) = first.split_once('-') else {
            if is_file && first == "Anonymous:" && second != "0" {
                parts.pop();
                is_file = false;
            }
            continue;
        };
        let inode = words.nth(2).unwrap_or("0");
        let number = |text| usize::from_str_radix(text, 16);
        is_file = matches!(second, "r-xp" | "r--p") && inode != "0";
        if let (true, Ok(start), Ok(end)) = (is_file, number(start), number(end)) {
            parts.push(start..end);
        } else {
            is_file = false;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f1000-7f3000 r--p 00000000 fe:00 5398742                    /bin/program
Rss:                6016 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
7f3000-7f6000 r-xp 00002000 fe:00 5398742                    /bin/program
Private_Dirty:        64 kB
Anonymous:             0 kB
7f6000-7f7000 r--p 00005000 fe:00 5398742                    /bin/program
Private_Dirty:      2224 kB
Anonymous:          2224 kB
7f7000-7f8000 rw-p 00006000 fe:00 5398742                    /bin/program
Private_Dirty:         0 kB
Anonymous:             0 kB
7ffc000-7ffe000 r-xp 00000000 00:00 0                          [vdso]
Private_Dirty:         0 kB
";

    #[test]
    fn only_what_nobody_has_changed_and_can_change_is_given_back() {
        assert_eq!(clean_parts(SMAPS), [0x7f_1000..0x7f_3000, 0x7f_3000..0x7f_6000]);
    }

    #[test]
    fn the_program_goes_on_without_its_pages() {
        let text = String::from("unchanged");
        assert!(give_back_pages().unwrap() > 0);
        assert_eq!(text, "unchanged");
        assert!(give_back_pages().unwrap() > 0);
    }
}
