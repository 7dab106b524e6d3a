#!/bin/bash
# fair.sh NAME [ztunnel]  : small requests beside bulk streams on one tunnel, then slow readers
export AMBIT_STATE=/run/fair-$1; A=ambit-dist; N=$1; shift
M=crates/bench/src/manifests
{ cat <<Y
apiVersion: v1
kind: Namespace
metadata: {name: bench, labels: {istio.io/dataplane-mode: ambient}}
---
Y
cat $M/path.yaml; sed -e 's/@name@/server/;s/@name@/server/g;s/@node@/node-2/' $M/server.yaml
cat <<Y
apiVersion: v1
kind: Service
metadata: {name: endless, namespace: bench}
spec: {selector: {app: endless}, ports: [{name: tcp, port: 9100}]}
---
apiVersion: v1
kind: Pod
metadata: {name: endless, namespace: bench, labels: {app: endless}}
spec:
  serviceAccountName: server
  nodeName: node-2
  containers:
  - {name: e, image: x, command: [python3, slowserver.py]}
Y
} > /tmp/fair.yaml
$A up --detach "$@" /tmp/fair.yaml >/tmp/fair.up 2>&1 || { tail -5 /tmp/fair.up; $A up --detach "$@" /tmp/fair.yaml; }
sleep 2
small() { $A exec bench/client -- ambit load "http://server.bench:8080/?size=1024" --rate 200/s --connections 4 -d 8s --warm-up 1s "$@" 2>&1 | grep -iE "p50|p99|fail|latency|%" | head -8; }
rss() { for p in $(pgrep -f "proxy ztunnel|[/ ]ztunnel|ambit.* proxy|proxy --worker" ); do awk -v c="$(tr '\0' ' ' </proc/$p/cmdline | cut -c1-50)" '/VmRSS/{print c, $2/1024 " MB"}' /proc/$p/status; done | sort | uniq -c | head; }
echo "== first and following connections, s (connect, total)"; for i in 1 2 3 4; do $A exec bench/client -- curl -s -o /dev/null -w '%{time_connect} %{time_total}\n' "http://server.bench:8080/?size=1024"; done
echo "== $N alone"; small
for k in 1 4; do
$A exec bench/client -- ambit load tcp://server.bench:9000 --protocol tcp-stream --rate max --connections $k -d 12s > /tmp/fair.bulk 2>&1 & sleep 1.5
echo "== $N beside $k streams"; small; wait; grep -iE "gbit|bit/s|bytes" /tmp/fair.bulk | head -3
done
echo "== memory before slow readers"; rss
for n in 2000 10000; do
$A exec bench/client -- python3 slow.py $n endless.bench 9100 1 25 > /tmp/fair.slow 2>&1 & 
for i in $(seq 60); do grep -q open /tmp/fair.slow && break; sleep 1; done
sleep 2; echo "== $N beside $n readers that do not read: $(cat /tmp/fair.slow)"; small; rss; free -m | awk '/Mem/{print "used MB", $3}'; cat /proc/net/sockstat | grep TCP; wait
sleep 2; echo "after:"; rss
done
$A down
