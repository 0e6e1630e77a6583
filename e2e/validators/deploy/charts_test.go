package deploy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
)

// What the chart of the mock driver calls the objects that kustomize takes from deploy/base.
var mockDriverNames = []string{
	"ServiceAccount/csi-attacher", "csi-mock-driver-controller",
	"Deployment/csi-attacher", "csi-mock-driver-controller",
	"PodDisruptionBudget/csi-attacher", "csi-mock-driver-controller",
	"Service/csi-attacher", "csi-mock-driver-controller",
	"ServiceMonitor/csi-attacher", "csi-mock-driver-controller",
	"NetworkPolicy/csi-attacher", "csi-mock-driver-controller",
	"ResourceQuota/csi-attacher", "csi-mock-driver-controller",
	"ClusterRole/csi-attacher", "csi-mock-driver-attacher",
	"Role/csi-attacher-lease", "csi-mock-driver-attacher-lease",
}

const kubeletOfK0s = "/var/lib/k0s/kubelet"

// Helm creates the Namespace.
var notInCharts = []string{"Namespace"}

// Alerts and dashboard are in the attacher's chart.
var notInMockDriverChart = append(notInCharts, "PrometheusRule", "ConfigMap")

func TestAttacherChartMeansWhatKustomizeMeans(t *testing.T) {
	for _, test := range []struct {
		components []string
		values     []string
	}{
		{nil, nil},
		{[]string{"publish-secrets"}, []string{"publishSecrets.enabled=true"}},
		{[]string{"monitoring"}, []string{"serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true"}},
		{[]string{"authenticated-metrics"}, []string{"metrics.authentication.enabled=true"}},
		{[]string{"monitoring", "authenticated-metrics"}, []string{"metrics.authentication.enabled=true," +
			"serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true"}},
		{[]string{"openshift"}, []string{"openshift=true"}},
		{[]string{"finalizers-only"}, []string{"finalizersOnly.enabled=true"}},
	} {
		t.Run(strings.Join(test.components, "+"), func(t *testing.T) {
			chart := helm(t, "csi-attacher", "csi-attacher", "csi-attacher", test.values...)
			chart.checkFields(t)
			expectSame(t, chart.installed(), parse(t, asTheChartKnows(kustomizeText(t, "base", test.components...))), notInCharts...)
		})
	}
}

// asTheChartKnows sets what the chart knows and kustomize cannot: the whole names of account and Deployment.
func asTheChartKnows(text string) string {
	return strings.NewReplacer(
		"request.userInfo.username.matches('^system:serviceaccount:[^:]+:csi-attacher(-[^:]+)?$')",
		"request.userInfo.username == 'system:serviceaccount:csi-attacher:csi-attacher'",
		`deployment=~"(.+-)?csi-attacher(-.+)?"`, `deployment="csi-attacher", namespace="csi-attacher"`,
	).Replace(text)
}

func TestMockDriverChartMeansWhatKustomizeMeans(t *testing.T) {
	for _, test := range []struct {
		overlay    string
		components []string
		values     []string
	}{
		{"mock-driver-nodes", nil, nil},
		{"mock-driver-nodes", []string{"monitoring"}, []string{"serviceMonitor.enabled=true"}},
		{"mock-driver-nodes", []string{"kubelet-directory"}, []string{"kubeletDirectory=" + kubeletOfK0s}},
		{"mock-driver-snapshots", nil, []string{"snapshots.enabled=true"}},
		{"mock-driver-group-snapshots", nil, []string{"snapshots.enabled=true", "groupSnapshots.enabled=true"}},
	} {
		t.Run(test.overlay+"+"+strings.Join(test.components, "+"), func(t *testing.T) {
			chart := helm(t, "csi-mock-driver", "csi-mock-driver", "csi-mock-driver", test.values...)
			chart.checkFields(t)
			text := kustomizeText(t, "overlays/"+test.overlay, test.components...)
			expectSame(t, chart.installed(), named(t, text, mockDriverNames...), notInMockDriverChart...)
		})
	}
}

// The example of a driver in the chart is the overlay that adds one to the base.
func TestExampleOfADriverMeansWhatTheOverlayMeans(t *testing.T) {
	chart := helm(t, "csi-attacher", "csi-attacher", "csi-mock-driver", "ci/mock-driver-values.yaml")
	chart.checkFields(t)
	text := strings.NewReplacer("mock.csi.local", "example.csi.local", "mock-csi-local", "example-csi-local").
		Replace(kustomizeText(t, "overlays/mock-driver"))
	expectSame(t, chart.installed(), parse(t, text), append(notInCharts, "CSIDriver")...)
}

// Cluster-scoped names of two releases must differ, or Helm refuses the second.
func TestReleasesDoNotShareClusterScopedObjects(t *testing.T) {
	second := []string{"driverName=second.csi.local", "dataDirectory=/var/lib/second", "storageClasses[0].name=second",
		"storageClasses[0].fsType=ext4", "storageClasses[0].volumeBindingMode=Immediate",
		"storageClasses[0].allowVolumeExpansion=true", "storageClasses[0].reclaimPolicy=Delete"}
	releases := []objects{
		helm(t, "csi-attacher", "one", "one"),
		helm(t, "csi-attacher", "two", "two"),
		helm(t, "csi-mock-driver", "csi-mock-driver", "three"),
		helm(t, "csi-mock-driver", "second", "four", second...),
	}
	seen := objects{}
	for _, rendered := range releases {
		for name, read := range rendered {
			if _, twice := seen[name]; twice {
				t.Errorf("two releases make %s", name)
			}
			seen[name] = read
		}
	}
}

func TestEveryValueReachesTheObjects(t *testing.T) {
	for _, test := range []struct{ chart, value, expected string }{
		{"csi-attacher", "image.repository=r.example/a", "image: r.example/a:0.1.0"},
		{"csi-attacher", "image.tag=v9", "image: csi-attacher:v9"},
		{"csi-attacher", "image.digest=sha256:" + strings.Repeat("a", 64), "image: csi-attacher@sha256:aaaa"},
		{"csi-attacher", "imagePullSecrets[0].name=registry", "- name: registry"},
		{"csi-attacher", "driver.containers[0].name=disk,driver.containers[0].image=disk:1", "image: disk:1"},
		{"csi-attacher", "driver.initContainers[0].name=disk,driver.initContainers[0].image=disk:1", "initContainers:\n"},
		{"csi-attacher", "driver.volumes[0].name=config", "- name: config"},
		{"csi-attacher", "socket.directory=/csi,socket.name=plugin.sock", "--csi-address=/csi/plugin.sock"},
		{"csi-attacher", "socket.volume.emptyDir=null,socket.volume.hostPath.path=/sockets", "path: /sockets"},
		{"csi-attacher", "leaderElection.enabled=false,replicas=1", "!--leader-election"},
		{"csi-attacher", "leaderElection.namespace=leases", "--leader-election-namespace=leases"},
		{"csi-attacher", "leaderElection.leaseDuration=30s", "--leader-election-lease-duration=30s"},
		{"csi-attacher", "leaderElection.renewDeadline=20s", "--leader-election-renew-deadline=20s"},
		{"csi-attacher", "leaderElection.retryPeriod=4s", "--leader-election-retry-period=4s"},
		{"csi-attacher", "timeout=1m30s", "--timeout=1m30s"},
		{"csi-attacher", "workerThreads=50", "--worker-threads=50"},
		{"csi-attacher", "maxDriverCalls=50", "--max-driver-calls=50"},
		{"csi-attacher", "maxDriverCalls=0", "!--max-driver-calls"},
		{"csi-attacher", "verbosity=0", "--v=0"},
		{"csi-attacher", "extraArgs[0]=--reconcile-sync=2m", "- --reconcile-sync=2m"},
		{"csi-attacher", "env[0].name=A,env[0].value=b", "- name: A"},
		{"csi-attacher", "http.port=9090", "containerPort: 9090"},
		{"csi-attacher", "http.healthPort=9091", "--health-endpoint=:9091"},
		{"csi-attacher", "http.healthPort=9091", "port: health"},
		{"csi-attacher", "metrics.authentication.enabled=false", "!--http-auth"},
		{"csi-attacher", "metrics.authentication.enabled=false", "!tokenreviews"},
		{"csi-attacher", "metrics.authentication.enabled=true", "!--http-tls-cert-file"},
		{"csi-attacher", "metrics.authentication.enabled=true,metrics.authentication.certificateSecret=c", "secretName: c"},
		{"csi-attacher", "metrics.authentication.enabled=true,metrics.authentication.certificateSecret=c",
			"--http-tls-key-file=/run/http-certificate/tls.key"},
		{"csi-attacher", "serviceMonitor.enabled=true,metrics.authentication.enabled=true,metrics.authentication.certificateSecret=c",
			"serverName: x-csi-attacher.x.svc"},
		{"csi-attacher", "serviceMonitor.enabled=true,metrics.authentication.enabled=true,metrics.authentication.certificateSecret=c",
			"!insecureSkipVerify"},
		{"csi-attacher", "serviceMonitor.enabled=true,metrics.authentication.enabled=true,metrics.authentication.certificateSecret=c," +
			"metrics.authentication.serverName=attacher.example", "serverName: attacher.example"},
		{"csi-attacher", "serviceAccount.create=false,serviceAccount.name=mine", "serviceAccountName: mine"},
		{"csi-attacher", "serviceAccount.annotations.role=cloud", "role: cloud"},
		{"csi-attacher", "rbac.create=false", "!ClusterRole"},
		{"csi-attacher", "podDisruptionBudget.enabled=false", "!PodDisruptionBudget"},
		{"csi-attacher", "nodeSelector.pool=infra", "pool: infra"},
		{"csi-attacher", "topologySpreadConstraints[0].topologyKey=rack,topologySpreadConstraints[0].maxSkew=2," +
			"topologySpreadConstraints[0].whenUnsatisfiable=DoNotSchedule", "maxSkew: 2"},
		{"csi-attacher", "topologySpreadConstraints=null", "!topologySpreadConstraints"},
		{"csi-attacher", "priorityClassName=", "!ResourceQuota"},
		{"csi-attacher", "priorityClassName=mine", "!ResourceQuota"},
		{"csi-attacher", "networkPolicy.enabled=false", "!NetworkPolicy"},
		{"csi-attacher", "networkPolicy.egress[0].ports[0].port=6443", "- port: 6443"},
		{"csi-attacher", "networkPolicy.extraIngress[0].ports[0].port=50051", "- port: 50051"},
		{"csi-attacher", "driver.name=disk.example.com", "resourceNames: [external-attacher-leader-disk-example-com]"},
		{"csi-attacher", "driver.name=disk.example.com,finalizersOnly.enabled=true", "!startsWith"},
		{"csi-attacher", "driver.name=disk.example.com,finalizersOnly.enabled=true",
			"name != 'external-attacher/disk-example-com')"},
		{"csi-attacher", "finalizersOnly.enabled=true", "PersistentVolume but external-attacher/*"},
		{"csi-attacher", "driver.name=disk.example.com,csiDriver.create=true,csiDriver.spec.podInfoOnMount=true", "podInfoOnMount: true"},
		{"csi-attacher", "driver.name=disk.example.com,leaderElection.enabled=false,replicas=1", "!external-attacher-leader"},
		{"csi-attacher", "global.imageRegistry=mirror.example:5000/a", "image: mirror.example:5000/a/csi-attacher:0.1.0"},
		{"csi-attacher", "global.imageRegistry=mirror.example", "image: mirror.example/kubectl:v"},
		{"csi-attacher", "global.imageRegistry=mirror.example,image.repository=ghcr.io/o/csi-attacher", "image: mirror.example/o/csi-attacher:0.1.0"},
		{"csi-attacher", "commonLabels.team=storage", "team: storage"},
		{"csi-attacher", `extraObjects[0].apiVersion=v1,extraObjects[0].kind=ConfigMap,extraObjects[0].metadata.name=x-\{\{ .Release.Name \}\}`, "name: x-x"},
		{"csi-attacher", "revisionHistoryLimit=0", "revisionHistoryLimit: 0"},
		{"csi-attacher", "volumeMounts[0].name=ca,volumeMounts[0].mountPath=/etc/ca", "mountPath: /etc/ca"},
		{"csi-attacher", "readinessProbe.failureThreshold=7", "failureThreshold: 7"},
		{"csi-attacher", "livenessProbe.timeoutSeconds=9", "timeoutSeconds: 9"},
		{"csi-attacher", "startupProbe.failureThreshold=99", "failureThreshold: 99"},
		{"csi-attacher", "serviceMonitor.enabled=true,serviceMonitor.relabelings[0].targetLabel=cluster", "targetLabel: cluster"},
		{"csi-attacher", "serviceMonitor.enabled=true,serviceMonitor.metricRelabelings[0].action=labeldrop", "action: labeldrop"},
		{"csi-attacher", "serviceMonitor.enabled=true,serviceMonitor.scrapeTimeout=5s", "scrapeTimeout: 5s"},
		{"csi-attacher", "prometheusRule.enabled=true,prometheusRule.runbookURL=https://docs.example/x",
			"runbook_url: https://docs.example/x#csiattacherattachstuck"},
		{"csi-attacher", "prometheusRule.enabled=true,fullnameOverride=disk", `kube_deployment_spec_replicas{deployment="disk", namespace="x"}`},
		{"csi-attacher", "serviceMonitor.enabled=true,metrics.authentication.enabled=true,serviceMonitor.tokenSecret=s",
			"authorization:\n        credentials:\n          name: s\n          key: token"},
		{"csi-attacher", "serviceMonitor.enabled=true,metrics.authentication.enabled=true,serviceMonitor.tokenSecret=s", "!bearerTokenFile"},
		{"csi-attacher", "dashboard.enabled=true,dashboard.annotations.folder=CSI", "folder: CSI"},
		{"csi-attacher", "openshift=true", "!runAsUser"},
		{"csi-attacher", "test.image.tag=v1.99.0", "image: registry.k8s.io/kubectl:v1.99.0"},
		{"csi-mock-driver", "global.imageRegistry=mirror.example", "image: mirror.example/sig-storage/csi-provisioner:v"},
		{"csi-mock-driver", "revisionHistoryLimit=0", "revisionHistoryLimit: 0"},
		{"csi-mock-driver", `extraObjects[0].apiVersion=v1,extraObjects[0].kind=ConfigMap,extraObjects[0].metadata.name=x-\{\{ .Release.Name \}\}`, "name: x-x"},
		{"csi-mock-driver", "driverName=a.b", "resourceNames: [external-attacher-leader-a-b]"},
		{"csi-mock-driver", "networkPolicy.enabled=false", "!NetworkPolicy"},
		{"csi-mock-driver", "controller.priorityClassName=,node.priorityClassName=", "!ResourceQuota"},
		{"csi-attacher", "podLabels.team=storage", "team: storage"},
		{"csi-attacher", "podSecurityContext.runAsUser=0,podSecurityContext.runAsNonRoot=false", "runAsUser: 0"},
		{"csi-attacher", "resources.limits.memory=1Gi", "memory: 1Gi"},
		{"csi-attacher", "serviceMonitor.enabled=true,serviceMonitor.labels.release=p,serviceMonitor.interval=30s", "interval: 30s"},
		{"csi-mock-driver", "driverName=a.b", "name: a.b\n"},
		{"csi-mock-driver", "dataDirectory=/data", "--media-dir=/data/media"},
		{"csi-mock-driver", "attachLimit=3", "--attach-limit=3"},
		{"csi-mock-driver", "imagePullPolicy=Always", "imagePullPolicy: Always"},
		{"csi-mock-driver", "controller.extraArgs[0]=--scenario=flaky", "- --scenario=flaky"},
		{"csi-mock-driver", "node.extraArgs[0]=--v=5", "- --v=5"},
		{"csi-mock-driver", "node.tolerations[0].key=gpu,node.tolerations[0].operator=Exists", "key: gpu"},
		{"csi-mock-driver", "node.priorityClassName=high", "priorityClassName: high"},
		{"csi-mock-driver", "controller.priorityClassName=high", "priorityClassName: high"},
		{"csi-mock-driver", "attacher.image.repository=registry.k8s.io/sig-storage/csi-attacher,attacher.image.tag=v4.13.0",
			"image: registry.k8s.io/sig-storage/csi-attacher:v4.13.0"},
		{"csi-mock-driver", "snapshots.enabled=true,snapshots.className=snap", "name: snap"},
		{"csi-mock-driver", "storageClasses=null", "!StorageClass"},
	} {
		t.Run(test.chart+" "+test.value, func(t *testing.T) {
			helm(t, test.chart, "x", "x", test.value).checkFields(t)
			files, err := release(test.chart, "x", "x", test.value)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(slices.Collect(maps.Values(files)), "\n")
			unexpected, absent := strings.CutPrefix(test.expected, "!")
			if absent == strings.Contains(text, unexpected) {
				t.Errorf("expected %q in\n%s", test.expected, text)
			}
		})
	}
}

func TestChartsRefuseBadValues(t *testing.T) {
	for _, test := range []struct{ chart, value, reason string }{
		{"csi-attacher", "replica=2", "replica"},
		{"csi-attacher", "replicas=two", "replicas"},
		{"csi-attacher", "replicas=-1", "replicas"},
		{"csi-attacher", "leaderElection.enabled=false", "leaderElection.enabled"},
		{"csi-attacher", "image=registry/csi-attacher:1", "image"},
		{"csi-attacher", "image.pullPolicy=Sometimes", "pullPolicy"},
		{"csi-attacher", "image.digest=sha256:1", "digest"},
		{"csi-attacher", "timeout=15", "timeout"},
		{"csi-attacher", "leaderElection.leaseDuration=fast", "leaseDuration"},
		{"csi-attacher", "workerThreads=-1", "workerThreads"},
		{"csi-attacher", "extraArgs[0]=timeout=1s", "extraArgs"},
		{"csi-attacher", "socket.directory=run", "directory"},
		{"csi-attacher", "http.port=0", "port"},
		{"csi-attacher", "http.healthPort=8080", "healthPort"},
		{"csi-attacher", "metrics.authentication.enabled=yes", "authentication"},
		{"csi-attacher", "metrics.authentication.certificateSecret=c", "need metrics.authentication.enabled"},
		{"csi-attacher", "metrics.authentication.enabled=true,metrics.authentication.serverName=s", "needs metrics.authentication.certificateSecret"},
		{"csi-attacher", "metrics.authentication.certificate=c", "certificate"},
		{"csi-attacher", "serviceMonitor.enabled=true,serviceMonitor.tokenSecret=s", "needs metrics.authentication.enabled"},
		{"csi-attacher", "tolerations[0].effect=Never", "tolerations"},
		{"csi-attacher", "driver.containers[0].name=disk", "image"},
		{"csi-attacher", "driver.containers[0].name=csi-attacher,driver.containers[0].image=a", "containers"},
		{"csi-attacher", "networkPolicy.from=null,networkPolicy.enabled=yes", "networkPolicy"},
		{"csi-attacher", "resources.limit.memory=1Gi", "resources"},
		{"csi-attacher", "csiDriver.create=true", "driver.name"},
		{"csi-attacher", "commonLabels.helm\\.sh/chart=x", "helm.sh/chart"},
		{"csi-attacher", "openshift=maybe", "openshift"},
		{"csi-attacher", "readinessProbe.path=/x", "readinessProbe"},
		{"csi-attacher", "prometheusRule.runbookURL=docs/alerts.md", "runbookURL"},
		{"csi-attacher", "driver.name=a/b", "driver"},
		{"csi-mock-driver", "kubeletDirectory=var/lib/kubelet", "kubeletDirectory"},
		{"csi-mock-driver", "kubeletDirectory=/var/lib/kubelet/", "kubeletDirectory"},
		{"csi-mock-driver", "driverName=Mock_Driver", "driverName"},
		{"csi-mock-driver", "attachLimit=-1", "attachLimit"},
		{"csi-mock-driver", "storageClasses[0].name=a", "storageClasses"},
		{"csi-mock-driver", "storageClasses[0].name=a,storageClasses[0].fsType=btrfs", "storageClasses"},
		{"csi-mock-driver", "groupSnapshots.enabled=true", "snapshots.enabled"},
		{"csi-mock-driver", "node.tolerate=true", "tolerate"},
		{"csi-mock-driver", "commonLabels.app\\.kubernetes\\.io/component=x", "app.kubernetes.io/component"},
		{"csi-mock-driver", "controller.replicas=2", "replicas"},
	} {
		t.Run(test.chart+" "+test.value, func(t *testing.T) {
			_, err := release(test.chart, "x", "x", test.value)
			if err == nil {
				t.Fatal("the chart took it")
			}
			if !strings.Contains(err.Error(), test.reason) {
				t.Errorf("the error does not name %q: %v", test.reason, err)
			}
		})
	}
}

func TestChartsAreLintClean(t *testing.T) {
	for _, chart := range chartNames(t) {
		linted := lint.RunAll(filepath.Join(charts, chart), map[string]any{}, "default")
		for _, message := range linted.Messages {
			// An icon is the only thing that these charts lack.
			if message.Severity > support.InfoSev || !strings.Contains(message.Error(), "icon is recommended") {
				t.Errorf("%s: %s", chart, message.Error())
			}
		}
	}
}

// Every object has the common labels, and no selector has them.
func TestCommonLabelsAreOnEveryObject(t *testing.T) {
	for chart, values := range map[string]string{
		"csi-attacher": "serviceMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true,finalizersOnly.enabled=true," +
			"publishSecrets.enabled=true,driver.name=d.example,csiDriver.create=true",
		"csi-mock-driver": "serviceMonitor.enabled=true,snapshots.enabled=true,groupSnapshots.enabled=true",
	} {
		for name, read := range helm(t, chart, "x", "x", "commonLabels.team=storage", values) {
			if field(read, "metadata", "labels")["team"] != "storage" {
				t.Errorf("%s of %s has the labels %v", name, chart, field(read, "metadata", "labels"))
			}
			if pod := field(read, "spec", "template", "metadata", "labels"); pod != nil && pod["team"] != "storage" {
				t.Errorf("pods of %s of %s have the labels %v", name, chart, pod)
			}
			if selector := selectorOf(fmt.Sprint(read["kind"]), read); selector["team"] != nil {
				t.Errorf("%s of %s selects by %v", name, chart, selector)
			}
		}
	}
}

// With `auto` the API of OpenShift decides, as `helm install` finds it.
func TestOpenShiftIsDetected(t *testing.T) {
	for _, test := range []struct {
		apis     []string
		expected bool
	}{{nil, true}, {[]string{"security.openshift.io/v1"}, false}} {
		files, err := releaseWith("csi-attacher", "x", "x", test.apis)
		if err != nil {
			t.Fatal(err)
		}
		for name, read := range parse(t, stream(files)) {
			pod := field(read, "spec", "template", "spec")
			if read["kind"] == "Pod" {
				pod = field(read, "spec")
			}
			if pod == nil {
				continue
			}
			for _, id := range []string{"runAsUser", "runAsGroup"} {
				if _, found := field(pod, "securityContext")[id]; found != test.expected {
					t.Errorf("with %v %s has %s: %v", test.apis, name, id, found)
				}
			}
			if field(pod, "securityContext")["runAsNonRoot"] != true {
				t.Errorf("%s may run as root", name)
			}
		}
	}
}

// The test's pod must not be selected by the Deployment, its PodDisruptionBudget or the Service.
func TestPodOfHelmTestIsNotSelected(t *testing.T) {
	objects := helm(t, "csi-attacher", "x", "x", "serviceMonitor.enabled=true")
	labels := field(objects["Pod x/x-csi-attacher-test"], "metadata", "labels")
	if labels == nil {
		t.Fatal("the chart has no test")
	}
	for name, read := range objects {
		selector := selectorOf(fmt.Sprint(read["kind"]), read)
		if selector != nil && len(matching(selector, map[string]object{"test": labels})) > 0 {
			t.Errorf("%s selects the test's pod", name)
		}
	}
}

// A version in Cargo.toml that the charts lack would install yesterday's images.
func TestChartsHaveTheVersionOfTheWorkspace(t *testing.T) {
	manifest := readFile(t, "Cargo.toml")
	_, version, _ := strings.Cut(manifest, "\nversion = \"")
	version, _, _ = strings.Cut(version, "\"")
	if version == "" {
		t.Fatal("Cargo.toml has no version")
	}
	for _, chart := range chartNames(t) {
		text := readFile(t, "deploy/charts/"+chart+"/Chart.yaml")
		for _, line := range []string{"version: " + version, "appVersion: " + version} {
			if !slices.Contains(strings.Split(text, "\n"), line) {
				t.Errorf("Chart.yaml of %s has no line %q", chart, line)
			}
		}
	}
}

func chartNames(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(charts)
	if err != nil || len(entries) < 2 {
		t.Fatalf("deploy/charts holds %v: %v", entries, err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
