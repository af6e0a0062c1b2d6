# bash completion for kshare                              -*- shell-script -*-
#
# It needs bash 3.2 or newer, and nothing of the package bash-completion. What is
# typed is never run: only $NAME and ~/ are replaced, as the shell would do it.

# __kshare_split splits a line into words. It sets words to those that are over,
# and to the one at its end: value without its quotes, raw as it is typed, quote
# to the quote that is open in it.
__kshare_split() {
    local line=$1 c name redirected='' in_word='' depth end
    local variable='^[{]?([A-Za-z_][A-Za-z0-9_]*)[}]?'
    local -i i=0 n=${#1}
    words=() value='' raw='' quote=''
    while ((i < n)); do
        c=${line:i:1}
        if [[ -z $quote && $c == [[:space:]] ]]; then
            if [[ -n $in_word && -z $redirected ]]; then
                words+=("$value")
            fi
            [[ -n $in_word ]] && redirected=''
            value='' raw='' in_word=''
            i+=1
            continue
        fi
        in_word=1
        raw+=$c
        if [[ $quote != "'" && $c${line:i+1:1} == [\$\<\>]'(' || $c == '`' ]]; then
            # A command is not run, so what it writes stays unknown.
            end=')' depth=0
            [[ $c == '`' ]] && end='`'
            value+=$c
            while ((++i < n)); do
                c=${line:i:1}
                value+=$c raw+=$c
                [[ $c == '(' ]] && depth=$((depth + 1))
                [[ $c == ')' ]] && depth=$((depth - 1))
                [[ $c == "$end" ]] && ((depth == 0)) && break
            done
            i+=1
            continue
        fi
        case $quote$c in
        "''" | '""') quote='' ;;
        "'" | '"') quote=$c ;;
        "'"*) value+=$c ;;
        '\' | '"\')
            c=${line:i+1:1}
            if [[ -n $quote && $c != [\$\`\"\\] ]]; then
                value+='\'
            fi
            value+=$c raw+=$c
            i+=1
            ;;
        '$' | '"$')
            if [[ ${line:i+1} =~ $variable ]]; then
                name=${BASH_REMATCH[1]}
                value+=${!name-}
                raw+=${BASH_REMATCH[0]}
                i+=${#BASH_REMATCH[0]}
            else
                value+=$c
            fi
            ;;
        '>' | '<')
            # A redirection and its file are no arguments of the program.
            if [[ -z $redirected && ${raw%"$c"} != *[!0-9\&]* ]]; then
                value='' raw='' in_word='' redirected=1
            elif [[ -n $redirected && $raw == "$c" ]]; then
                raw='' in_word=''
            else
                [[ -z $redirected ]] && words+=("$value")
                value='' raw='' in_word='' redirected=1
            fi
            ;;
        *)
            if [[ $c == '~' && $raw == '~' && ${line:i+1:1} == / ]]; then
                value+=${HOME-}
            else
                value+=$c
            fi
            ;;
        esac
        i+=1
    done
    [[ -z $redirected ]]
}

# __kshare_quote writes a value as it has to be typed where the quote $2 is open.
__kshare_quote() {
    local s=$1
    case $2 in
    "'") ;;
    '"')
        s=${s//\\/\\\\}
        s=${s//\"/\\\"}
        s=${s//\$/\\\$}
        s=${s//\`/\\\`}
        ;;
    *)
        printf -v s %q "$s"
        s=${s//\\,/,} # nothing is special about a comma without braces
        ;;
    esac
    quoted=$s
}

__kshare_option() {
    if [[ $(type -t compopt) == builtin ]]; then
        compopt "$@" 2>/dev/null
    fi
}

# __kshare_offer makes COMPREPLY of names and abouts. $1 is what precedes all of
# them in the word, $2 what of the word the shell does not replace.
__kshare_offer() {
    local prefix=$1 kept=$2 common='' name quoted
    local -i i longest=0 room
    local -a shown
    for name in "${names[@]}"; do
        [[ -z $common ]] && common=$name
        while [[ $name != "$common"* ]]; do
            common=${common%?}
        done
    done
    if ((${#names[@]} > 1)) && [[ -z $quote && ${#prefix}+${#common} -gt ${#value} ]]; then
        # They go on together.
        names=("$common")
        nospace=1
    fi
    for ((i = 0; i < ${#names[@]}; i++)); do
        name=$prefix${names[i]}
        [[ $name == "$kept"* ]] || continue
        [[ $quote == "'" && $name == *"'"* ]] && continue # cannot be typed there
        __kshare_quote "${name#"$kept"}" "$quote"
        shown[i]=$quoted
        ((${#quoted} > longest)) && longest=${#quoted}
    done
    if ((${#shown[@]} > 1)) && [[ ${COMP_TYPE-} != 37 && ${COMP_TYPE-} != 42 ]]; then
        room=$((${COLUMNS:-80} - longest - 4))
        for i in "${!shown[@]}"; do
            name=${abouts[i]}
            [[ -n $name ]] && ((room > 8)) || continue
            ((${#name} > room)) && name=${name:0:room-3}...
            printf -v name '%-*s  (%s)' "$longest" "${shown[i]}" "$name"
            shown[i]=$name
        done
    elif ((${#shown[@]} == 1)) && [[ $(type -t compopt) != builtin && -z $nospace$quote ]]; then
        shown=("${shown[@]/%/ }") # bash 3 does not do it here
    fi
    ((${#shown[@]})) && COMPREPLY=("${shown[@]}")
    [[ -n $nospace ]] && __kshare_option -o nospace
    __kshare_option -o nosort
}

# __kshare_files offers files that match the pattern $3, and directories; all
# files if none matches, and none if it is /. $1 and $2 are those of __kshare_offer.
__kshare_files() {
    local prefix=$1 kept=$2 pattern=$3 name matched=''
    local -a dirs all
    while IFS='' read -r name; do
        if [[ -d $name ]]; then
            dirs+=("$name/")
        elif [[ -n $name ]]; then
            all+=("$name")
            if [[ -n $pattern && $pattern != / && $name =~ $pattern ]]; then
                names+=("$name")
                matched=1
            fi
        fi
    done < <(compgen -f -- "${value#"$prefix"}")
    if [[ -z $matched && $pattern != / ]] && ((${#all[@]})); then
        names=("${all[@]}")
    fi
    if ((${#names[@]} == 0 && ${#dirs[@]} == 1)); then
        nospace=1
    fi
    ((${#dirs[@]})) && names+=("${dirs[@]}")
    ((${#names[@]})) || return
    if [[ $(type -t compopt) == builtin ]]; then
        # The shell quotes names of files itself, and shows their last parts.
        __kshare_option -o filenames
        [[ -n $nospace ]] && __kshare_option -o nospace
        for name in "${names[@]}"; do
            name=$prefix${name%/}
            [[ $name == "$kept"* ]] && COMPREPLY+=("${name#"$kept"}")
        done
        return
    fi
    __kshare_offer "$prefix" "$kept"
}

__start_kshare() {
    local value raw quote program out line directive kept='' prefix='' nospace=''
    local -a words names abouts
    COMPREPLY=()
    if ! __kshare_split "${COMP_LINE:0:COMP_POINT}"; then
        __kshare_option -o default # the file of a redirection
        return
    fi
    program=${words[0]-}
    if [[ $(type -t "$program") != file ]]; then
        program=kshare # that was an alias
    fi
    out=$("$program" __complete "${words[@]:1}" "$value" 2>/dev/null </dev/null) || return
    directive=${out##*:}
    [[ -z $directive || $directive == *[!0-9]* ]] && return
    while IFS='' read -r line; do
        if [[ -n $line ]]; then
            names+=("${line%%$'\t'*}")
            [[ $line == *$'\t'* ]] || line+=$'\t'
            abouts+=("${line#*$'\t'}")
        fi
    done <<<"${out%:*}"

    # A flag and its value are one word, of which the program tells the value.
    [[ $value == -*=* ]] && prefix=${value%%=*}=
    # The shell replaces what follows a quote that is open, or the last of
    # COMP_WORDBREAKS, and has that as $2.
    if [[ $raw == *"$2" ]]; then
        local typed=$value open=$quote
        __kshare_split "${raw%"$2"}"
        kept=$value value=$typed quote=$open
    fi
    if ((directive & 1)); then # an error
        return
    elif ((directive & 8)); then # files with extensions
        line=${names[*]-}
        names=()
        __kshare_files "$prefix" "$kept" "\\.(${line// /|})\$"
    elif ((directive & 16)); then # directories
        names=()
        __kshare_files "$prefix" "$kept" /
    elif ((${#names[@]})); then
        ((directive & 2)) && nospace=1
        __kshare_offer "$prefix" "$kept"
    elif (((directive & 4) == 0)); then # any file
        if [[ $(type -t compopt) == builtin ]]; then
            __kshare_option -o default
        else
            __kshare_files "$prefix" "$kept" ''
        fi
    fi
}

if [[ $(type -t compopt) == builtin ]]; then
    complete -F __start_kshare kshare
else
    complete -o nospace -F __start_kshare kshare
fi
