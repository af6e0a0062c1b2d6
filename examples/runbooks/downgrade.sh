#!/usr/bin/env bash
# Lower share.version, so that records are no longer acknowledged in transactions
# (KIP-1289), without stranding one that is.
#
#   downgrade.sh [--yes] [--wait DURATION] share.version=LEVEL [-- DRAIN-FLAG...]
#
# Stop the applications that acknowledge in transactions first: it waits for
# transactions that are open, at most --wait (5m), and ends none. Without --yes,
# or with DRY_RUN=1, it looks and rehearses, and changes nothing. What follows --
# is for 'kshare drain': where leaders keep what is pending in memory alone it needs
# --endpoint URL of the metrics of every broker to be sure.
# The cluster is that of KSHARE_BOOTSTRAP_SERVER.

set -euo pipefail
# shellcheck source=examples/runbooks/steps.sh
. "$(dirname "$0")/steps.sh"

limit=5m
target=
while [ $# -gt 0 ]; do
	case $1 in
	--yes) yes=1 ;;
	--wait)
		[ -n "${2-}" ] || wrong "--wait needs a duration"
		limit=$2
		shift
		;;
	-h | --help) usage && exit ;;
	share.version=*) target=$1 ;;
	--)
		shift
		break
		;;
	*) wrong "not an argument: $1" ;;
	esac
	shift
done
[ -n "$target" ] || wrong "share.version=LEVEL is missing: there is no default level"
drain_flags=("$@")
need "$KSHARE" jq

step "1. Describe: where every broker stands, and what the way back is"
try feature describe
[ "$code" = 0 ] || stop "$code" "not every broker is known, or they differ: nothing was changed"
ask feature describe
[ "$code" = 0 ] || stop "$code" "not every broker is known, or they differ: nothing was changed"
before=$(answered '.items[] | select(.feature == "share.version") | .finalized_level')
[ -n "$before" ] || stop 5 "this cluster has no share.version"
if [ "share.version=$before" = "$target" ]; then
	note "$target is in force already"
	exit 0
fi
back="kshare feature upgrade share.version=$before --yes"
note "share.version is at $before; the way back is: $back"

step "2. Pending: which records are in TX_PENDING"
try inspect pending
look
[ "$incomplete" = 0 ] || stop 6 "it is not known what is pending, and unknown is not zero: nothing was changed"
tell

if ! acting; then
	step "3. Rehearse: what would be waited for, and whether the controller would make the change"
	try drain --dry-run ${drain_flags[@]+"${drain_flags[@]}"}
	[ "$code" = 0 ] || stop "$code" "a drain would not succeed: end first what does not end by itself, with stuck-transaction.sh"
	try feature downgrade "$target" --drain "$(consent)"
	[ "$code" = 0 ] || stop "$code" "the change is not possible now"
	note "nothing was changed: that takes --yes, and no DRY_RUN"
	exit 0
fi

step "3. Drain: wait until nothing is pending, for sure"
try drain --timeout "$limit" ${drain_flags[@]+"${drain_flags[@]}"}
case $code in
0) ;;
6) stop 6 "not drained: something does not end by itself, for which there is stuck-transaction.sh, or cannot be seen; the level is as it was" ;;
7) stop 7 "not drained within $limit: stop the producers that are named above, and run this again; the level is as it was" ;;
*) stop "$code" "not drained; the level is as it was" ;;
esac

step "4. Downgrade: look once more, and lower the level in the same breath"
try feature downgrade "$target" "$(consent)" --detailed-exitcode
case $code in
0) note "somebody else has lowered the level meanwhile" ;;
10) note "the level was lowered" ;;
3) stop 3 "the level was lowered, and transactions above came in between: their records are stuck until the level is raised again: $back; then stop their producers, and begin anew" ;;
6) stop 6 "refused: something became pending since the drain, so a producer is still running; the level is as it was" ;;
7) stop 7 "the controller took the change, and not every broker was seen to follow: 'kshare feature describe --wide' shows which" ;;
*) stop "$code" "the level was not lowered" ;;
esac

step "5. Verify: every broker reports the level, and nothing is stranded"
ask feature describe
[ "$code" = 0 ] || stop "$code" "the level was lowered, and not every broker can be asked about it"
now=$(answered '.items[] | select(.feature == "share.version") | .finalized_level')
[ "share.version=$now" = "$target" ] || stop 1 "share.version is at $now: somebody else changes it"
try inspect pending --check
[ "$code" = 0 ] || stop "$code" "records were stranded, or that cannot be seen: raise the level again: $back"

note "the level is $target on every broker; older software may be rolled out from now on, and not before"
note "the way back: $back"
