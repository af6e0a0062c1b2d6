#compdef kshare
compdef _kshare kshare

# zsh completion for kshare                               -*- shell-script -*-
#
# What is typed is never run: of what the shell replaces, only a word that is
# $NAME as a whole, and ~/ at its beginning, are replaced here.

_kshare() {
    local program word name out directive line longest=0
    local -a line_words names abouts shown options

    for word in "${(@)words[1,CURRENT-1]}"; do
        word=${(Q)word}
        name=${${word#\$}#\{}
        name=${name%\}}
        if [[ $word == \$* && -n $name && $name != *[^A-Za-z0-9_]* && $name != [0-9]* ]]; then
            word=${(P)name}
        elif [[ $word == '~/'* ]]; then
            word=$HOME${word#\~}
        fi
        line_words+=("$word")
    done
    program=$line_words[1]
    if [[ -z $program ]] || ! whence -p -- "$program" >/dev/null; then
        program=kshare # that was an alias
    fi
    word=${(Q)PREFIX}
    [[ $word == '~/'* ]] && word=$HOME${word#\~}
    out=$("$program" __complete "${(@)line_words[2,-1]}" "$word" 2>/dev/null </dev/null) || return 1
    directive=${out##*:}
    [[ $directive == <-> ]] || return 1
    for line in "${(@f)${out%:*}}"; do
        [[ -n $line ]] || continue
        name=${line%%$'\t'*}
        names+=("$name")
        if [[ $line == *$'\t'* ]]; then
            abouts+=("${line#*$'\t'}")
        else
            abouts+=('')
        fi
        ((${#name} > longest)) && longest=${#name}
    done

    # A flag and its value are one word, of which the program tells the value.
    [[ $PREFIX == -*=* ]] && compset -P 1 '*='
    if ((directive & 1)); then # an error
        return 1
    elif ((directive & 8)); then # files with extensions, else any
        _files -g "*.(${(j:|:)names})" || _files
        return
    elif ((directive & 16)); then # directories
        _files -/
        return
    elif ((${#names} == 0)); then
        ((directive & 4)) && return 1
        _files
        return
    fi
    integer i
    for ((i = 1; i <= ${#names}; i++)); do
        if [[ -n $abouts[i] ]]; then
            shown+=("${(r:longest:)names[i]}  -- $abouts[i]")
        else
            shown+=("$names[i]")
        fi
    done
    ((directive & 2)) && options=(-S '')
    [[ -n ${(j::)abouts} ]] && options+=(-l)
    # In the order in which they come, with what is special to the shell quoted.
    compadd -V kshare "${(@)options}" -d shown -a -- names
}

# From a directory of $fpath this file is the function, and is being run.
if [[ $funcstack[1] == _kshare ]]; then
    _kshare "$@"
fi
