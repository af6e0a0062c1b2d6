#!/usr/bin/env bash
# What to do about transactions that PostgreSQL has prepared together with
# acknowledgements in Kafka (docs/two-phase.md) and that nobody ends: commit
# Kafka's part where it is still open, and end the database's as that ended.
#
#   settle-database.sh [--yes] [--abort] CONNECTION-STRING
#
# The transactions are those of this database whose names are tokens of kshare.
# --abort aborts what is still open, in place of committing it. What Kafka cannot
# tell the end of stays as it is. Without --yes, or with DRY_RUN=1, it looks and
# rehearses, and changes nothing.
# The cluster is that of KSHARE_BOOTSTRAP_SERVER.

set -euo pipefail
# shellcheck source=examples/runbooks/steps.sh
. "$(dirname "$0")/steps.sh"

decision=--commit
database=
while [ $# -gt 0 ]; do
	case $1 in
	--yes) yes=1 ;;
	--abort) decision=--abort ;;
	-h | --help) usage && exit ;;
	-*) wrong "not an argument: $1" ;;
	*)
		[ -z "$database" ] || wrong "one connection string, and not $1 as well"
		database=$1
		;;
	esac
	shift
done
[ -n "$database" ] || wrong "which database?"
need "$KSHARE" jq psql

# sql runs a statement: a line for each row.
sql() { psql -XAtq -v ON_ERROR_STOP=1 -d "$database" -c "$1" </dev/null; }

step "1. Find what is prepared"
prepared=$(sql "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'ktx1.%' ORDER BY prepared") ||
	stop 1 "the database could not be asked"
[ -n "$prepared" ] || { note "nothing is prepared" && exit; }

step "2. End each as Kafka's part ends"
worst=0
for gid in $prepared; do
	ask txn resume "$decision" "$(consent)" -- "$gid"
	outcome=$(answered '.items[0].outcome // empty' 2>/dev/null) || outcome=
	case $outcome in
	committed) statement="COMMIT PREPARED" ;;
	aborted) statement="ROLLBACK PREPARED" ;;
	open)
		note "$gid: open in Kafka"
		acting || continue
		worst=$code
		continue
		;;
	*)
		[ "$code" != 0 ] || code=1
		note "$gid: stays prepared, for how it ended is not known (exit status $code)"
		case $code in
		8 | 9) note "if rows have a key of (group, topic, partition, offset), COMMIT PREPARED is right in both cases: see docs/two-phase.md" ;;
		esac
		worst=$code
		continue
		;;
	esac
	note "$gid: $outcome in Kafka: $statement"
	if acting; then
		sql "$statement '$gid'" || worst=1
	fi
done
[ "$worst" = 0 ] || stop "$worst" "some stay prepared; what they have locked stays locked"
