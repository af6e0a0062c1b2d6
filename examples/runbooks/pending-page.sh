#!/usr/bin/env bash
# What to do when "records in TX_PENDING for more than 60 s" pages: see which
# they are and whose, wait for those that end by themselves, and say what is to
# be done about the others.
#
#   pending-page.sh [--older-than DURATION] [--wait DURATION] [--endpoint URL]...
#                   [--fence ID]... [--yes]
#
# It looks at transactions that are older than 60 s, and waits for 2m at most. It
# changes nothing, but for transactions that are named with --fence, which are
# aborted if they are still open after the wait; that takes --yes, and no
# DRY_RUN=1. With --endpoint, for the metrics of each broker, it also finds what
# leaders hold in memory alone, which nothing else shows.
# The cluster is that of KSHARE_BOOTSTRAP_SERVER.

set -euo pipefail
# shellcheck source=examples/runbooks/steps.sh
. "$(dirname "$0")/steps.sh"

age=60s
limit=2m
fence=()
endpoints=()
while [ $# -gt 0 ]; do
	case $1 in
	--yes) yes=1 ;;
	--older-than | --wait | --endpoint | --fence)
		[ -n "${2-}" ] || wrong "$1 needs a value"
		case $1 in
		--older-than) age=$2 ;;
		--wait) limit=$2 ;;
		--endpoint) endpoints+=(--endpoint "$2") ;;
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
filter=(--older-than "$age")

# ends are the transactions whose markers are on their way.
ends='[.items[] | select(class == "ending") | [.transactional_id, .started]]'

# still_ending holds where they have been on their way since before the wait.
# shellcheck disable=SC2016 # $before is a variable of jq
still_ending() { answered -e --argjson before "$ending" "$class$ends"' | . - (. - $before) != []' >/dev/null; }

# compare looks whether the metrics agree that nothing is pending for long.
compare() {
	if [ ${#endpoints[@]} = 0 ]; then
		note "should the metric stay above 0: leaders may hold records in memory alone, run this with the metrics of every broker (--endpoint)"
		return
	fi
	step "Compare: whether the metrics agree (this takes $age)"
	try inspect metrics "${endpoints[@]}" --for "$age" --alert KafkaShareTxnPendingRecords --check
	case $code in
	0) note "the metrics agree" ;;
	6)
		filter=()
		look
		! nothing || stop 6 "escalate to who runs the brokers: by their metrics leaders hold records in TX_PENDING of which nothing else knows, so their end marker was lost"
		note "records are in TX_PENDING all the time, and none of them for long: the applications are busy"
		;;
	*) stop "$code" "the metrics could not be read" ;;
	esac
}

step "1. Inspect: what has been pending for more than $age, and on whom"
try inspect pending "${filter[@]}"
look
if nothing; then
	[ "$incomplete" = 0 ] || stop 3 "nothing is to be seen, which is not nothing: see to the above first"
	note "$(answered .data.reason)"
	compare
	note "it has resolved by itself, or is younger than $age: see who is slow to commit, by 'kshare inspect pending --watch'"
	exit 0
fi

step "2. Classify: what ends by itself, and what does not"
tell
ending=$(answered -c "$class$ends")

if has open ending; then
	step "3. Wait: for at most $limit, until transactions end or time out"
	try inspect pending "${filter[@]}" --wait --timeout "$limit"
	case $code in
	0 | 3 | 7) ;;
	*) stop "$code" "the wait failed" ;;
	esac
	look
fi

for id in ${fence[@]+"${fence[@]}"}; do
	# shellcheck disable=SC2016 # $id is a variable of jq
	if ! answered -e --arg id "$id" '.items | any(.transactional_id == $id)' >/dev/null; then
		note "$id holds none of these, and is left alone"
		continue
	fi
	step "4. Fence: abort the transaction of $id, and take the ID from its producer"
	try txn fence "$(consent)" --timeout "$limit" -- "$id"
	case $code in
	0) ;;
	6) note "refused: its commit is decided" ;;
	*) stop "$code" "$id was not fenced" ;;
	esac
	if acting; then
		try inspect pending --txn "$id" --wait --timeout "$limit"
	else
		note "nothing was changed: that takes --yes, and no DRY_RUN"
	fi
	look
done

step "5. Outcome"
if nothing; then
	[ "$incomplete" = 0 ] || stop 3 "nothing is left that can be seen, which is not nothing: see to the above first"
	compare
	note "nothing has been pending for more than $age any more"
	exit 0
fi
tell
if has orphan overdue; then
	stop 6 "escalate: these do not end by themselves; stuck-transaction.sh shows what to do, and does it with --yes"
fi
if has undelivered || still_ending; then
	stop 6 "escalate to who runs the brokers: a decided end does not arrive; never abort it, look at the coordinator and at the leaders of __share_group_state"
fi
if has two-phase; then
	stop 6 "escalate to the owner of the two-phase commit, who decides it; --fence would discard a decision to commit"
fi
if has unknown; then
	stop 3 "escalate: whose these are cannot be seen; see to the above first"
fi
stop 7 "still open after $limit: they end by their timeout, or now with --fence ID --yes, which their producers notice"
