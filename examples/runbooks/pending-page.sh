#!/usr/bin/env bash
# What to do when "records in TX_PENDING for more than 60 s" pages: see which
# they are and whose, wait for those that end by themselves, and say what is to
# be done about the others.
#
#   pending-page.sh [--older-than DURATION] [--wait DURATION] [--fence ID]... [--yes]
#
# It looks at transactions that are older than 60 s, and waits for 2m at most. It
# changes nothing, but for transactions that are named with --fence, which are
# aborted if they are still open after the wait; that takes --yes, and no
# DRY_RUN=1. The cluster is that of KSHARE_BOOTSTRAP_SERVER.

set -euo pipefail
# shellcheck source=examples/runbooks/steps.sh
. "$(dirname "$0")/steps.sh"

age=60s
wait=2m
fence=()
while [ $# -gt 0 ]; do
	case $1 in
	--yes) yes=1 ;;
	--older-than | --wait | --fence)
		[ $# -gt 1 ] && [ -n "$2" ] || wrong "$1 needs a value"
		case $1 in
		--older-than) age=$2 ;;
		--wait) wait=$2 ;;
		--fence) fence+=("$2") ;;
		esac
		shift
		;;
	-h | --help) usage && exit ;;
	*) wrong "not an argument: $1" ;;
	esac
	shift
done
need "$KSHARE" jq
seen=0 # 3 as soon as something could not be seen

# look asks what is pending. It goes on where not all can be seen: what is seen
# is true.
look() {
	ask inspect pending --older-than "$age"
	case $code in
	0) ;;
	3)
		seen=3
		gaps
		;;
	*) stop "$code" "what is pending could not be looked at" ;;
	esac
}

# What is to be done about a row of 'kshare inspect pending':
# - orphan: no transaction will end it;
# - ending: its end is decided, so that it must not be aborted any more; most
#   likely its markers are on their way;
# - prepared: part of a two-phase commit, which its owner decides;
# - overdue: it should have timed out, and its coordinator does not end it;
# - open: it ends when its producer ends it, or by its timeout;
# - unknown: whose it is cannot be seen.
class='
def class:
	if .verdict == "orphan" then "orphan"
	elif .transaction_state == null then "unknown"
	elif .transaction_state != "Ongoing" then "ending"
	elif .two_phase then "prepared"
	elif .stuck then "overdue"
	else "open" end;
'

# has holds where a row of $answer is of one of the classes.
has() { answered -e "$class"'[.items[] | class] | any(IN($ARGS.positional[]))' --args "$@" >/dev/null; }

# tell tells each holder, what it is, and what kshare advises.
tell() {
	answered "$class"'
		[.items[] | "\(class): \(.transactional_id // "__share_group_state-\(.state_partition)" | tostring): \(.advice)"]
		| unique[] | "-- " + .' >&2
}

step "1. Inspect: what has been pending for more than $age, and on whom (keep this for the incident)"
try inspect pending --older-than "$age" -o wide
look
if answered -e '.items == []' >/dev/null; then
	[ "$seen" = 0 ] || stop 3 "nothing is to be seen, which is not nothing: have the above granted"
	note "$(answered .data.reason)"
	note "it has resolved by itself: see who is slow to commit, by 'kshare inspect pending --watch'"
	exit 0
fi

step "2. Classify: what ends by itself, and what does not"
tell

if has open ending; then
	step "3. Wait: for at most $wait, until transactions end or time out"
	try inspect pending --older-than "$age" --wait --timeout "$wait"
	case $code in
	0 | 3 | 7) ;;
	*) stop "$code" "the wait failed" ;;
	esac
	look
fi

for id in ${fence[@]+"${fence[@]}"}; do
	answered -e --arg id "$id" '.items | any(.transactional_id == $id)' >/dev/null || continue
	step "4. Fence: abort the transaction of $id, and take the ID from its producer"
	try txn fence "$(consent)" -- "$id"
	case $code in
	0) ;;
	6) note "refused: its commit is decided" ;;
	*) stop "$code" "$id was not fenced" ;;
	esac
	if acting; then
		try inspect pending --txn "$id" --wait --timeout "$wait"
	else
		note "nothing was changed: that takes --yes, and no DRY_RUN"
	fi
	look
done

step "5. Outcome"
if answered -e '.items == []' >/dev/null; then
	[ "$seen" = 0 ] || stop 3 "nothing is left that can be seen, which is not nothing: have the above granted"
	note "nothing has been pending for more than $age any more"
	exit 0
fi
tell
if has orphan overdue; then
	stop 6 "escalate: these do not end by themselves; stuck-transaction.sh shows what to do, and does it with --yes"
fi
if has ending; then
	stop 6 "escalate to who runs the brokers: a decided end does not arrive; never abort it, look at the coordinator and at the leaders of __share_group_state"
fi
if has prepared; then
	stop 6 "escalate to the owner of the two-phase commit, who decides it; --fence would discard a decision to commit"
fi
if has unknown; then
	stop 3 "escalate: whose these are cannot be seen; have the above granted"
fi
stop 7 "still open after $wait: they end by their timeout, or now with --fence ID --yes, which their producers notice"
