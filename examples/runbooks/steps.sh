# shellcheck shell=bash
# What the runbooks share. It is sourced, and does nothing by itself.
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
ask() {
	code=0
	answer=$("$KSHARE" "$@" -q -o json </dev/null) || code=$?
}

# answered reads $answer by a jq program: a line for each text.
answered() { jq -r "$@" <<<"$answer"; }

# gaps says what $answer lacks, and what would show it.
gaps() { answered '.data.gaps[] | "-- not seen: \(.reason)\n   \(.advice)"' >&2; }
