//! The pages of the running program's file.

use std::io;
use std::ops::Range;

/// Gives back the pages of the program's code that this process has mapped: most of them are of its
/// start and never touched again. One that is needed is mapped again from the system's cache.
///
/// Says how many bytes of address space they are in; none if any of them was changed.
pub(crate) fn give_back_pages() -> io::Result<usize> {
    let here = (give_back_pages as fn() -> io::Result<usize>) as usize;
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let Some(code) = unchanged_code(&smaps, here) else { return Ok(0) };
    let start = std::ptr::with_exposed_provenance_mut(code.start);
    // SAFETY: this function is in the mapping, so it is the program's code and never unmapped. It
    // is a file's, not writable, and none of its pages was changed: whoever reads or executes them
    // next finds the same in the file.
    super::check(unsafe { libc::madvise(start, code.len(), libc::MADV_DONTNEED) })?;
    Ok(code.len())
}

/// The mapping of code that contains an address, if the system says that no page of it was changed,
/// be it here or swapped out.
fn unchanged_code(smaps: &str, address: usize) -> Option<Range<usize>> {
    let (mut code, mut unchanged) = (None, [false; 2]);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else { continue };
        if let Some((start, end)) = first.split_once('-') {
            if code.is_some() {
                break;
            }
            let number = |text| usize::from_str_radix(text, 16);
            let range = number(start).ok()?..number(end).ok()?;
            let is_file = words.nth(2).is_some_and(|inode| inode != "0");
            code = (second == "r-xp" && is_file && range.contains(&address)).then_some(range);
            continue;
        }
        match first {
            "Anonymous:" => unchanged[0] = code.is_some() && second == "0",
            "Swap:" => unchanged[1] = code.is_some() && second == "0",
            _ => {}
        }
    }
    code.filter(|_| unchanged == [true; 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f1000-7f3000 r--p 00000000 fe:00 5398742                    /bin/program
Anonymous:             0 kB
Swap:                  0 kB
7f3000-7f6000 r-xp 00002000 fe:00 5398742                    /bin/program
Private_Dirty:        64 kB
Anonymous:             0 kB
Swap:                  0 kB
7f6000-7f7000 r--p 00005000 fe:00 5398742                    /bin/program
Anonymous:             0 kB
Swap:               2224 kB
7ffc000-7ffe000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
Swap:                  0 kB
";

    #[test]
    fn only_code_that_nobody_has_changed_is_given_back() {
        let code = |smaps: &str| unchanged_code(smaps, 0x7f_4000);
        assert_eq!(code(SMAPS), Some(0x7f_3000..0x7f_6000));
        for address in [0x7f_2000, 0x7f_6000, 0x7ff_d000, 0] {
            assert_eq!(unchanged_code(SMAPS, address), None, "{address:x}");
        }
        let (before, after) = SMAPS.split_once("64 kB\n").expect("the code");
        for line in ["Anonymous:             0 kB\n", "Swap:                  0 kB\n"] {
            let changed = after.replacen(line, &line.replace("0 kB", "4 kB"), 1);
            assert_eq!(code(&[before, "64 kB\n", &changed].concat()), None, "{line}");
            // Nor where nothing is said of it.
            let unsaid = after.replacen(line, "", 1);
            let end = unsaid.find("7f6000").expect("the next");
            assert_eq!(code(&[before, "64 kB\n", &unsaid[..end]].concat()), None, "{line}");
        }
    }

    #[test]
    fn the_program_goes_on_without_its_pages() {
        let text = String::from("unchanged");
        for _ in 0..2 {
            assert!(give_back_pages().unwrap() > 0);
            assert_eq!(text, "unchanged");
        }
    }
}
