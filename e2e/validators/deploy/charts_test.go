package deploy

import (
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
	"ClusterRole/csi-attacher", "csi-mock-driver-attacher",
	"Role/csi-attacher-lease", "csi-mock-driver-attacher-lease",
}

const kubeletOfK0s = "/var/lib/k0s/kubelet"

// Helm creates the Namespace; alerts and dashboard are in components/monitoring only.
var notInCharts = []string{"Namespace", "PrometheusRule", "ConfigMap"}

func TestAttacherChartMeansWhatKustomizeMeans(t *testing.T) {
	for _, test := range []struct {
		components []string
		values     []string
	}{
		{nil, nil},
		{[]string{"critical-priority"}, []string{"priorityClassName=system-cluster-critical"}},
		{[]string{"publish-secrets"}, []string{"publishSecrets.enabled=true"}},
		{[]string{"monitoring"}, []string{"serviceMonitor.enabled=true"}},
		{[]string{"network-policy"}, []string{"networkPolicy.enabled=true"}},
		{[]string{"control-plane-nodes"}, []string{
			"tolerations[0].key=node-role.kubernetes.io/control-plane,tolerations[0].operator=Exists",
			"tolerations[0].effect=NoSchedule",
		}},
	} {
		t.Run(strings.Join(test.components, "+"), func(t *testing.T) {
			chart := helm(t, "csi-attacher", "csi-attacher", "csi-attacher", test.values...)
			chart.checkFields(t)
			expectSame(t, chart, kustomize(t, "base", test.components...), notInCharts...)
		})
	}
}

func TestMockDriverChartMeansWhatKustomizeMeans(t *testing.T) {
	for _, test := range []struct {
		overlay    string
		components []string
		values     []string
	}{
		{"mock-driver-nodes", nil, nil},
		{"mock-driver-nodes", []string{"monitoring"}, []string{"serviceMonitor.enabled=true"}},
		{"mock-driver-nodes", []string{"network-policy"}, []string{"networkPolicy.enabled=true"}},
		{"mock-driver-nodes", []string{"kubelet-directory"}, []string{"kubeletDirectory=" + kubeletOfK0s}},
		{"mock-driver-nodes", []string{"critical-priority", "node-critical-priority"}, []string{
			"controller.priorityClassName=system-cluster-critical", "node.priorityClassName=system-node-critical",
		}},
		{"mock-driver-snapshots", nil, []string{"snapshots.enabled=true"}},
		{"mock-driver-group-snapshots", nil, []string{"snapshots.enabled=true", "groupSnapshots.enabled=true"}},
	} {
		t.Run(test.overlay+"+"+strings.Join(test.components, "+"), func(t *testing.T) {
			chart := helm(t, "csi-mock-driver", "csi-mock-driver", "csi-mock-driver", test.values...)
			chart.checkFields(t)
			text := kustomizeText(t, "overlays/"+test.overlay, test.components...)
			expectSame(t, chart, named(t, text, mockDriverNames...), notInCharts...)
		})
	}
}

// The example of a driver in the chart is the overlay that adds one to the base.
func TestExampleOfADriverMeansWhatTheOverlayMeans(t *testing.T) {
	chart := helm(t, "csi-attacher", "csi-attacher", "csi-mock-driver", "ci/mock-driver-values.yaml")
	chart.checkFields(t)
	text := strings.ReplaceAll(kustomizeText(t, "overlays/mock-driver"), "mock.csi.local", "example.csi.local")
	expectSame(t, chart, parse(t, text), append(notInCharts, "CSIDriver")...)
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
		{"csi-attacher", "verbosity=0", "--v=0"},
		{"csi-attacher", "extraArgs[0]=--reconcile-sync=2m", "- --reconcile-sync=2m"},
		{"csi-attacher", "env[0].name=A,env[0].value=b", "- name: A"},
		{"csi-attacher", "http.port=9090", "containerPort: 9090"},
		{"csi-attacher", "serviceAccount.create=false,serviceAccount.name=mine", "serviceAccountName: mine"},
		{"csi-attacher", "serviceAccount.annotations.role=cloud", "role: cloud"},
		{"csi-attacher", "rbac.create=false", "!ClusterRole"},
		{"csi-attacher", "podDisruptionBudget.enabled=false", "!PodDisruptionBudget"},
		{"csi-attacher", "nodeSelector.pool=infra", "pool: infra"},
		{"csi-attacher", "topologySpreadKeys[0]=rack", "topologyKey: rack"},
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
		{"csi-attacher", "tolerations[0].effect=Never", "tolerations"},
		{"csi-attacher", "driver.containers[0].name=disk", "image"},
		{"csi-attacher", "driver.containers[0].name=csi-attacher,driver.containers[0].image=a", "containers"},
		{"csi-attacher", "networkPolicy.from=null,networkPolicy.enabled=yes", "networkPolicy"},
		{"csi-attacher", "resources.limit.memory=1Gi", "resources"},
		{"csi-mock-driver", "kubeletDirectory=var/lib/kubelet", "kubeletDirectory"},
		{"csi-mock-driver", "kubeletDirectory=/var/lib/kubelet/", "kubeletDirectory"},
		{"csi-mock-driver", "driverName=Mock_Driver", "driverName"},
		{"csi-mock-driver", "attachLimit=-1", "attachLimit"},
		{"csi-mock-driver", "storageClasses[0].name=a", "storageClasses"},
		{"csi-mock-driver", "storageClasses[0].name=a,storageClasses[0].fsType=btrfs", "storageClasses"},
		{"csi-mock-driver", "groupSnapshots.enabled=true", "snapshots.enabled"},
		{"csi-mock-driver", "node.tolerate=true", "tolerate"},
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
