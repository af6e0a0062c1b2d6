#!/usr/bin/env bash
# Switch transactional acknowledgement (KIP-1289) on, once every broker runs
# software that knows it.
#
#   enable.sh [--yes]
#
# Without --yes, or with DRY_RUN=1, it looks and rehearses, and changes nothing.
# The cluster is that of KSHARE_BOOTSTRAP_SERVER.

set -euo pipefail
# shellcheck source=examples/runbooks/steps.sh
. "$(dirname "$0")/steps.sh"

while [ $# -gt 0 ]; do
	case $1 in
	--yes) yes=1 ;;
	-h | --help) usage && exit ;;
	*) wrong "not an argument: $1" ;;
	esac
	shift
done
need "$KSHARE" jq

step "1. Describe: where every broker stands"
try feature describe
case $code in
0) ;;
3) stop 3 "not every broker is known, or they differ: bring them back first" ;;
*) stop "$code" "the cluster cannot be described" ;;
esac

step "2. Plan: what is to be done, and what stands in the way"
try feature plan --enable txn-acks
[ "$code" = 0 ] || stop "$code" "there is no way to transactional acknowledgement from here"
ask feature plan --enable txn-acks
blocked=$(answered '.items[] | select(.state == "blocked" or .id == "binaries" and .state != "done") | "\(.title): \(.why)"')
[ -z "$blocked" ] || stop 6 "$blocked"

step "3. Rehearse: have the controller validate the change"
try feature upgrade --enable txn-acks --dry-run
[ "$code" = 0 ] || stop "$code" "the change is not possible now; nothing was changed"
if ! acting; then
	note "nothing was changed: that takes --yes, and no DRY_RUN"
	exit 0
fi

step "4. Upgrade: raise the levels, and wait until every broker reports them"
try feature upgrade --enable txn-acks "$(consent)" --detailed-exitcode
case $code in
0) note "the levels were in force already" ;;
10) note "the levels were raised" ;;
7) stop 7 "not every broker was seen at the new levels: 'kshare feature describe --wide' shows which; then run this again, which goes on from there" ;;
*) stop "$code" "the levels were not raised" ;;
esac

step "5. Verify: every broker takes acknowledgements in transactions"
ask feature describe
lacking=$(answered '.data.brokers[] | select(.txn_share_acknowledge != "usable") | "broker \(.node_id): \(.reason)"')
[ "$code" = 0 ] && [ -z "$lacking" ] || stop 3 "the levels are raised, and not every broker follows: ${lacking:-see above}"
note "all of them do"

step "6. Verify: what is in TX_PENDING can be seen, before anybody is paged for it"
look
[ "$incomplete" = 0 ] || stop 3 "the levels are raised; see to the above before clients are rolled out"
note "$(answered .data.reason)"

note "next: roll out the clients; alert on TxnPendingRecordsCount above 0 for more than 60 s, for which there is pending-page.sh"
note "the way back: downgrade.sh"
