# shellcheck shell=bash
# What the runbooks share. It is sourced, and does nothing to a cluster by itself.
#
# Each step is told on stderr before it is done; what kshare finds is on stdout.
# Nothing is read from stdin: what no argument asks for is not done.

KSHARE=${KSHARE:-kshare}
yes=0

# step says what is done next.
step() { printf '\n== %s\n' "$*" >&2; }

# note says what follows from a step.
note() { printf -- '-- %s\n' "$*" >&2; }

# stop ends the runbook with an exit code, and says why.
stop() {
	local code=$1
	shift
	printf '\n!! %s (exit status %d)\n' "$*" "$code" >&2
	exit "$code"
}

# usage shows the comment at the top of the runbook.
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

# wrong ends the runbook because of its arguments.
wrong() {
	usage >&2
	stop 64 "$*"
}

# need ends the runbook unless the programs are there.
need() {
	local program
	for program in "$@"; do
		command -v "$program" >/dev/null || stop 64 "$program is not installed, or not in PATH"
	done
}

# acting holds where the cluster may be changed.
acting() { [ "$yes" = 1 ] && [ "${DRY_RUN:-0}" = 0 ]; }

# consent is the flag for a command that changes the cluster.
consent() { if acting; then echo --yes; else echo --dry-run; fi; }

# try runs kshare, for people, and keeps its exit code in $code.
try() {
	code=0
	"$KSHARE" "$@" </dev/null || code=$?
}

# ask runs kshare, and keeps its document in $answer and its exit code in $code.
# That an answer is incomplete (3) is in the document.
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
ask() {
	code=0
	answer=$("$KSHARE" -q -o json "$@" </dev/null 2>"$errors") || code=$?
	[ "$code" = 3 ] || cat "$errors" >&2
}

# answered reads $answer by a jq program: a line for each text.
answered() { jq -r "$@" <<<"$answer"; }

# missed notes that $answer is not the whole truth: what it lacks, and what would
# show it. What it does have is true.
incomplete=0
missed() {
	[ "$incomplete" = 1 ] || answered '.data.gaps | map(select(.advice)) + .[:1] | unique[] | "-- not seen: \(.reason)", (.advice | strings | "   " + .)' >&2
	incomplete=1
}

# look asks what is in TX_PENDING, and passes the filter.
filter=()
look() {
	ask inspect pending ${filter[@]+"${filter[@]}"}
	case $code in
	0) ;;
	3) missed ;;
	*) stop "$code" "what is pending could not be looked at" ;;
	esac
}

# class is what a row of 'kshare inspect pending' comes to, as a function of jq:
# - orphan: no transaction will end it;
# - ending: its end is decided and cannot be changed any more, its markers are on
#   their way;
# - undelivered: the same, and for so long that they do not seem to arrive;
# - two-phase: it may be prepared, and its owner decides;
# - overdue: it should have timed out, and its coordinator does not end it;
# - open: it ends when its producer ends it, or by its timeout;
# - unknown: whose it is cannot be seen.
class='
	def class:
		if .verdict == "orphan" then "orphan"
		elif .transaction_state == null then "unknown"
		elif .transaction_state != "Ongoing" then (if .stuck then "undelivered" else "ending" end)
		elif .two_phase then "two-phase"
		elif .stuck then "overdue"
		else "open" end;
'

# has holds where a row of $answer is of one of these classes.
# shellcheck disable=SC2016 # $ARGS is a variable of jq
has() { answered -e "$class"'[.items[] | class] | any(IN($ARGS.positional[]))' --args "$@" >/dev/null; }

# nothing holds where $answer has no rows.
nothing() { answered -e '.items == []' >/dev/null; }

# tell says of each holder of $answer what it comes to, and what kshare advises.
tell() {
	answered "$class"'
		[.items[] | "-- \(class): \(.transactional_id // "__share_group_state-\(.state_partition)"): \(.advice)"]
		| unique[]' >&2
}
