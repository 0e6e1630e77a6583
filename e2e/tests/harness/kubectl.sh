# Commands of a user of kubectl. What they print must not depend on the cluster.
cd "$HOME"
kubectl create namespace kubectl
kubectl config set-context --current --namespace=kubectl >context.log
kubectl wait --for=create serviceaccount/default --timeout=60s
kubectl create serviceaccount robot
kubectl create token robot --duration=1h >token
test -s token
kubectl create secret generic login --from-literal=user=admin
kubectl get secret login -o jsonpath='{.data.user}{"\n"}'
cat >objects.yaml <<EOF
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: none
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Node
metadata: {name: kubectl-node}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  nodeSelector: {kubernetes.io/hostname: kubectl-nowhere}
  containers: [{name: app, image: pause, volumeMounts: [{name: volume, mountPath: /volume}]}]
  volumes: [{name: volume, persistentVolumeClaim: {claimName: data}}]
EOF
kubectl create -f objects.yaml --dry-run=server
kubectl apply -f objects.yaml
sed -i 's/containers: \[{/tolerations: [{key: maintenance, operator: Exists}]\n  containers: [{/' objects.yaml
kubectl apply -f objects.yaml
kubectl diff -f objects.yaml
cat >list.yaml <<EOF
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Secret, metadata: {name: first}}
- {apiVersion: v1, kind: Secret, metadata: {name: second}}
EOF
kubectl create -f list.yaml
kubectl apply -f list.yaml 2>apply.log
kubectl delete -f list.yaml
printf 'apiVersion: example.com/v1\nkind: Unserved\nmetadata: {name: a}\n' >unserved.yaml
! kubectl apply -f unserved.yaml 2>&1
! kubectl create -f unserved.yaml 2>&1
kubectl get pods,pvc -o name
kubectl get pods --no-headers -o custom-columns=NAME:.metadata.name,TOLERATIONS:.spec.tolerations[*].key
kubectl get pod web -o json | grep -c '"kind": "Pod"'
kubectl get pod web -o yaml | grep '^kind'
kubectl get pods | awk '{ print $1, $2, $3, $4 }'

kubectl get pods -w -o name >watch.log &
until grep -q pod/web watch.log; do kill -0 $!; sleep 0.1; done
kubectl label pod web tier=front
until (($(wc -l <watch.log) >= 2)); do kill -0 $!; sleep 0.1; done
kill $!
sort -u watch.log
kubectl label pod web tier=back --overwrite
kubectl label pod web tier-
kubectl annotate pod web note=text
kubectl patch pod web -p '{"metadata": {"labels": {"a": "b"}}}'
kubectl patch pod web --type=json -p '[{"op": "replace", "path": "/metadata/labels/a", "value": "c"}]'
kubectl patch pod web --type=merge -p '{"metadata": {"labels": {"a": null}}}'
printf '#!/bin/sh\nsed -i "s/note: text/note: edited/" "$1"\n' >editor
chmod +x editor
EDITOR="$HOME/editor" kubectl edit pod web
kubectl get pod web -o jsonpath='{.metadata.annotations.note}{"\n"}'
kubectl describe pod web | sed -n '/^Name:/p; /^Status:/p; /^Node-Selectors:/p; /^  volume:/,/ReadOnly/p'
kubectl describe pvc data | sed -n '1,4p; /^Used By:/p'
kubectl wait --for=jsonpath='{.status.phase}'=Pending pod/web --timeout=60s

kubectl taint node kubectl-node key=value:NoSchedule
kubectl taint node kubectl-node key=value:NoSchedule-
kubectl cordon kubectl-node
kubectl uncordon kubectl-node
kubectl drain kubectl-node --ignore-daemonsets
kubectl describe node kubectl-node | sed -n '/^Name:/p; /^Unschedulable:/p'

kubectl get --raw /api/v1/namespaces/kubectl/pods | grep -o '"kind":"PodList"'
kubectl get --raw /readyz && echo
kubectl explain pvc.spec.volumeName | sed -n 1,4p
kubectl api-resources --api-group=coordination.k8s.io -o name

kubectl delete pod web --grace-period=0 --force
kubectl delete secret login
kubectl delete serviceaccount robot
kubectl describe namespace kubectl
kubectl delete serviceaccount default
kubectl wait --for=create serviceaccount/default --timeout=60s
kubectl delete -f objects.yaml --ignore-not-found
kubectl get pods,pvc 2>&1
kubectl delete namespace kubectl

cat >kept.yaml <<EOF
apiVersion: v1
kind: Namespace
metadata: {name: kubectl-kept}
spec: {finalizers: [kubernetes, example.com/keep]}
EOF
kubectl create -f kept.yaml
kubectl delete namespace kubectl-kept --wait=false
kubectl wait --for=jsonpath='{.spec.finalizers[0]}'=example.com/keep namespace/kubectl-kept --timeout=60s
kubectl get namespace kubectl-kept -o json | sed '/example.com.keep/d' | kubectl replace --raw /api/v1/namespaces/kubectl-kept/finalize -f - >finalize.log
kubectl wait --for=delete namespace/kubectl-kept --timeout=60s
