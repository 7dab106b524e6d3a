//! What is added to the generated completions of a shell, so that it offers names too.
//!
//! The shell gives the words up to the cursor to the hidden `ambit complete-names`. Where that
//! knows names, the shell offers these, and else what was generated.

use clap_complete::Shell;

/// The generated function offers the placeholders of arguments as if they were words, so they are
/// left out where there are names.
const BASH: &str = r#"
_ambit_with_names() {
    _ambit "$@"
    local name word names=() others=()
    while IFS= read -r name; do
        names+=("$name")
    done < <("${COMP_WORDS[0]}" complete-names -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${#names[@]} -gt 0 ]]; then
        for word in "${COMPREPLY[@]}"; do
            [[ $word == [\<\[]* ]] || others+=("$word")
        done
        COMPREPLY=("${names[@]}" "${others[@]}")
    fi
}
complete -F _ambit_with_names -o bashdefault -o default ambit
"#;

/// How the function begins that is generated for zsh.
const ZSH_GENERATED: &str = "\n_ambit() {\n";
/// It gets another name. One that zsh loads from a file has to be called as the file is.
const ZSH: &str = r#"
_ambit() {
    local -a names
    names=(${(f)"$("${(Q)words[1]}" complete-names -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#names )); then
        compadd -a names
    else
        _ambit_words "$@"
    fi
}

_ambit_words() {
"#;

/// The condition asks, and leaves what it found to the list of words. Values of flags are completed
/// only by what is said of the flag.
const FISH: &str = r#"
function __fish_ambit_has_names
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    set -g __fish_ambit_names (command $program complete-names -- $words "$current" 2>/dev/null)
    test (count $__fish_ambit_names) -gt 0
end

complete -c ambit -f -n __fish_ambit_has_names -a '$__fish_ambit_names'
complete -c ambit -s n -l namespace -r -f -n __fish_ambit_has_names -a '$__fish_ambit_names'
complete -c ambit -l for -r -f -n __fish_ambit_has_names -a '$__fish_ambit_names'
"#;

/// The completions of a shell with names, if it can have them.
pub(crate) fn with_names(shell: Shell, generated: &str) -> String {
    match shell {
        Shell::Bash => format!("{generated}{BASH}"),
        Shell::Fish => format!("{generated}{FISH}"),
        Shell::Zsh => generated.replacen(ZSH_GENERATED, ZSH, 1),
        _ => generated.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn shells_ask_for_names() {
        for (shell, expected) in [
            (Shell::Bash, true),
            (Shell::Zsh, true),
            (Shell::Fish, true),
            (Shell::PowerShell, false),
        ] {
            let mut generated = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ambit", &mut generated);
            let generated = String::from_utf8(generated).expect("completions are text");
            let text = with_names(shell, &generated);
            assert_eq!(text.contains("complete-names -- "), expected, "{shell}");
            if shell == Shell::Zsh {
                assert_eq!(text.matches("\n_ambit() {").count(), 1);
                assert_eq!(text.matches("\n_ambit_words() {").count(), 1);
            }
        }
    }
}
