#!/bin/bash
# slowlink.sh BINARY NAME: small requests beside bulk streams over a link of 100 Mbit/s
A=$1; N=$2; shift 2; export AMBIT_STATE=/run/slow-$N
M=crates/bench/src/manifests
{ cat <<Y
apiVersion: v1
kind: Namespace
metadata: {name: bench, labels: {istio.io/dataplane-mode: ambient}}
---
Y
cat $M/path.yaml; sed -e 's/@name@/server/;s/@name@/server/g;s/@node@/node-2/' $M/server.yaml; } > slow.yaml
$A up --detach "$@" slow.yaml >slow.up 2>&1 || tail -5 slow.up
sleep 2
# the node's proxy, ours or ztunnel
P=$(pgrep -f "ambit.* proxy .*node-1" | head -1)
[ "$P" ] || for p in $(pgrep -f "proxy ztunnel"); do tr '\0' '\n' </proc/$p/environ | grep -q "=node-1$" && P=$p; done
D=$(nsenter -n -t $P ip -br link | awk '$1!="lo"&&$1~/eth0/{print $1}' | cut -d@ -f1 | head -1)
nsenter -n -t $P tc qdisc add dev $D root tbf rate 100mbit burst 32kb latency 20ms || exit
small() { $A exec bench/client -- ambit load "http://server.bench:8080/?size=1024" --rate 100/s --connections 4 -d 8s --warm-up 1s 2>&1 | grep -iE "p50|p99|fail" | head -4; }
echo "== $N alone"; small
for k in 1 4; do
$A exec bench/client -- ambit load tcp://server.bench:9000 --protocol tcp-stream --rate max --connections $k -d 12s > slow.bulk 2>&1 & sleep 2
echo "== $N beside $k streams"; small; wait; grep -iE "gbit|bit/s" slow.bulk | head -3
done
$A down >/dev/null
