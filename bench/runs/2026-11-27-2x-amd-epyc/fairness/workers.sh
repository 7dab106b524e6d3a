#!/bin/bash
# workers.sh BINARY: requests and processor time with one worker and with two
A=$1; export AMBIT_STATE=/run/workers
M=crates/bench/src/manifests
{ cat <<Y
apiVersion: v1
kind: Namespace
metadata: {name: bench, labels: {istio.io/dataplane-mode: ambient}}
---
Y
cat $M/path.yaml; sed -e 's/@name@/server/;s/@name@/server/g;s/@node@/node-2/' $M/server.yaml; } > workers.yaml
cpu() { for p in $(pgrep -f "ambit.* proxy .*node-"); do awk '{print $14+$15}' /proc/$p/stat; done | awk '{s+=$1} END {print s*10}'; }
for round in 1 2 3; do for n in 1 2; do
$A up --detach --proxy-flag=--worker-threads=$n workers.yaml >workers.up 2>&1 || tail -5 workers.up
sleep 2
for c in 1 16; do
$A exec bench/client -- ambit load "http://server.bench:8080/?size=1024" --rate max --connections $c -d 1s >/dev/null 2>&1
before=$(cpu)
$A exec bench/client -- ambit load "http://server.bench:8080/?size=1024" --rate max --connections $c -d 5s --warm-up 0s >workers.load 2>&1
after=$(cpu)
r=$(awk '/^requests/{print $2}' workers.load)
echo "workers $n, connections $c: $((r/5)) requests/s, $(((after-before)*1000/r)) us of CPU each, $(grep -o 'failed [0-9]*' workers.load)"
done
$A down >/dev/null 2>&1
done; done
