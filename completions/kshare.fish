# fish completion for kshare                              -*- shell-script -*-
#
# What is typed is never run: of what the shell replaces, only a word that is
# $NAME as a whole, and ~/ at its beginning, are replaced here.

function __kshare_complete
    set -l words
    for word in (commandline -opc)
        if string match -qr '^\$[A-Za-z_][A-Za-z0-9_]*$' -- $word
            set -l name (string sub -s 2 -- $word)
            set word "$$name"
        end
        set -a words (string replace -r '^~/' "$HOME/" -- $word)
    end
    set -l program $words[1]
    command -sq -- $program; or set program kshare # that was an alias
    # The word at the cursor, without its quotes, of which one may be open.
    set -l current (commandline -ct)
    for closing in '' "'" '"'
        set -l unquoted (string unescape -- "$current$closing" 2>/dev/null)
        and set current $unquoted
        and break
    end
    set -l word (string replace -r '^~/' "$HOME/" -- "$current")

    set -l lines (command $program __complete $words[2..-1] "$word" 2>/dev/null </dev/null)
    set -l directive (string match -r '^:([0-9]+)$' -- $lines[-1])[2]
    test -n "$directive"; or return
    set -e lines[-1]

    # A flag and its value are one word, of which the program tells the value.
    set -l flag (string match -r -- '^-[^=]*=' "$current")
    if test (math "floor($directive / 8) % 2") -eq 1 # files with extensions, else any
        set -l files (__kshare_files "$flag" "$current")
        set -l pattern '(/|\\.('(string join '|' -- $lines)'))$'
        string match -qr -- $pattern $files; and set files (string match -r -- ".*$pattern" $files)
        string join \n -- $files
    else if test (math "floor($directive / 16) % 2") -eq 1 # directories
        __kshare_files "$flag" "$current" | string match -r '.*/$'
    else if test (count $lines) -gt 0
        string join \n -- "$flag"$lines
    else if test (math "floor($directive / 4) % 2") -eq 0
        __kshare_files "$flag" "$current"
    end
end

# __kshare_files lists the files that a word goes on to be, behind a flag.
function __kshare_files
    # A command that has no completions completes files.
    set -l word (string sub -s (math (string length -- "$argv[1]") + 1) -- "$argv[2]")
    for file in (complete -C "'' "(string escape -- "$word") | string replace -r '\t.*' '')
        echo $argv[1]$file
    end
end

complete -c kshare -e
complete -c kshare -f -k -a '(__kshare_complete)'
