#!/bin/sh
# Redirects connections to brokers into the proxy (`routing: transparent`), and undoes it.
#
#   redirect.sh up | down
#
#   PROXY_PORT    where the listener is (9094)
#   PROXY_UID     the user that the proxy runs as, a number; nothing else may run as it (60092)
#   BROKER_PORTS  ports of the brokers, with commas in between (9092)
#   FROM          local: what is dialled on this machine or in this pod (the default)
#                 passing: what comes in from elsewhere, on a machine that routes to the brokers
#   TOOL          iptables or nft; by default whichever there is
#
# What the proxy's own user dials is left alone: that is its way to the brokers. Needs root or
# CAP_NET_ADMIN. `up` may be repeated. IPv6 is redirected too where the machine has it: let the
# listener's address then be [::]:PORT.
set -eu

PROXY_PORT=${PROXY_PORT:-9094}
PROXY_UID=${PROXY_UID:-60092}
BROKER_PORTS=${BROKER_PORTS:-9092}
FROM=${FROM:-local}
CHAIN=REAUTH_PROXY
TABLE=reauth_proxy

fail() {
    echo "redirect.sh: $1" >&2
    exit 2
}

numbers() { # name, value, further characters that may stand in it
    case $2 in
    '' | *[!0-9$3]*) fail "$1 must be made of numbers, got '$2'" ;;
    esac
}

numbers PROXY_PORT "$PROXY_PORT" ''
numbers PROXY_UID "$PROXY_UID" ''
numbers BROKER_PORTS "$BROKER_PORTS" ','
case $FROM in
local) HOOK=OUTPUT hook=output ;;
passing) HOOK=PREROUTING hook=prerouting ;;
*) fail "FROM must be local or passing, got '$FROM'" ;;
esac
if [ -z "${TOOL:-}" ]; then
    if command -v iptables >/dev/null; then TOOL=iptables; else TOOL=nft; fi
fi
case $TOOL in
iptables | nft) command -v "$TOOL" >/dev/null || fail "$TOOL is not installed" ;;
*) fail "TOOL must be iptables or nft, got '$TOOL'" ;;
esac

# The commands of iptables for each family that the machine has.
families() {
    echo iptables
    if command -v ip6tables >/dev/null && ip6tables -w -t nat -S >/dev/null 2>&1; then
        echo ip6tables
    fi
}

iptables_down() {
    for command in $(families); do
        for hook in OUTPUT PREROUTING; do
            while rule=$("$command" -w -t nat -S "$hook" | grep -m 1 -e "-j $CHAIN\$"); do
                # shellcheck disable=SC2086 # a rule is several words
                "$command" -w -t nat -D ${rule#-A }
            done
        done
        "$command" -w -t nat -F "$CHAIN" 2>/dev/null || true
        "$command" -w -t nat -X "$CHAIN" 2>/dev/null || true
    done
}

iptables_up() {
    iptables_down
    for command in $(families); do
        "$command" -w -t nat -N "$CHAIN"
        if [ "$HOOK" = OUTPUT ]; then
            "$command" -w -t nat -A "$CHAIN" -m owner --uid-owner "$PROXY_UID" -j RETURN
        fi
        "$command" -w -t nat -A "$CHAIN" -p tcp -j REDIRECT --to-ports "$PROXY_PORT"
        # Last, when the chain is complete.
        "$command" -w -t nat -A "$HOOK" -p tcp -m multiport --dports "$BROKER_PORTS" -j "$CHAIN"
    done
}

nft_down() {
    nft delete table inet "$TABLE" 2>/dev/null || true
}

nft_up() {
    nft_down
    exempt=
    if [ "$HOOK" = OUTPUT ]; then exempt="meta skuid $PROXY_UID return"; fi
    nft -f - <<END
table inet $TABLE {
    chain $hook {
        type nat hook $hook priority -100
        $exempt
        tcp dport { $BROKER_PORTS } redirect to :$PROXY_PORT
    }
}
END
}

case ${1:-} in
up | down) "${TOOL}_$1" ;;
*) fail "up or down?" ;;
esac
