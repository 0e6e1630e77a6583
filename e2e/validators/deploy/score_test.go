package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// What kube-score finds in the charts, and why it stays. `object` is a kind, `container` a container's name or "*" for every one.
var scoreExceptions = []struct{ chart, object, check, container, finding, reason string }{
	{"*", "*", "container-image-pull-policy", "*", "ImagePullPolicy is not set to Always",
		"images have a version, in a release a digest; a registry that is down must not keep a pod from starting"},
	{"*", "*", "container-resources", "*", "CPU limit is not set",
		"a throttled attacher can lose its lease, and a throttled driver delays attaches"},
	{"*", "*", "container-ephemeral-storage-request-and-limit", "*", "Ephemeral Storage limit is not set",
		"the root filesystem is read-only; what is left is the log, which kubelet rotates"},
	{"*", "*", "container-ephemeral-storage-request-and-limit", "*", "Ephemeral Storage request is not set",
		"the root filesystem is read-only; what is left is the log, which kubelet rotates"},
	{"csi-mock-driver", "*", "container-security-context-user-group-id", "*", "The container is running with a low user ID",
		"root owns the host directory with the array's state and socket, which the sidecars share"},
	{"csi-mock-driver", "*", "container-security-context-user-group-id", "*", "The container running with a low group ID",
		"root owns the host directory with the array's state and socket, which the sidecars share"},
	{"csi-mock-driver", "Deployment", "deployment-strategy", "", "Deployment update strategy",
		"the driver's process is the storage array: two at a time would be two arrays"},
	{"csi-mock-driver", "Deployment", "deployment-replicas", "", "Deployment few replicas",
		"the driver's process is the storage array: two at a time would be two arrays"},
	{"csi-mock-driver", "DaemonSet", "pod-networkpolicy", "", "The pod does not have a matching NetworkPolicy",
		"it serves sockets of the host only"},
	{"csi-mock-driver", "DaemonSet", "container-security-context-privileged", "driver", "The container is privileged",
		"it mounts loop devices so that kubelet sees them"},
	{"csi-attacher", "Deployment", "deployment-has-host-podantiaffinity", "", "Deployment does not have a host podAntiAffinity set",
		"spread constraints keep replicas apart; anti-affinity would count the old ones during a rolling update (ADR 0018)"},
	{"csi-attacher", "Pod", "pod-networkpolicy", "", "The pod does not have a matching NetworkPolicy",
		"it serves nothing, and ends after the test"},
}

// The charts with what is off by default, so that all objects are scored.
func TestChartsHaveOnlyKnownFindingsOfKubeScore(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kube-score")
	build := exec.Command("go", "build", "-mod=readonly", "-trimpath", "-o", program, "github.com/zegl/kube-score/cmd/kube-score")
	build.Dir = root + "/e2e/kube-score"
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	used := make([]bool, len(scoreExceptions))
	for chart, values := range map[string]string{
		"csi-attacher": "serviceMonitor.enabled=true,metrics.authentication.enabled=true,driver.containers[0].name=driver," +
			"driver.containers[0].image=disk:1,driver.containers[0].securityContext.readOnlyRootFilesystem=true," +
			"driver.containers[0].resources.requests.cpu=10m,driver.containers[0].resources.requests.memory=1Mi," +
			"driver.containers[0].resources.limits.memory=1Mi",
		"csi-mock-driver": "serviceMonitor.enabled=true,snapshots.enabled=true,groupSnapshots.enabled=true",
	} {
		files, err := release(chart, chart, chart, values)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range score(t, program, stream(files)) {
			if !excepts(used, chart, found) {
				t.Errorf("%s: %+v", chart, found)
			}
		}
	}
	for i, exception := range scoreExceptions {
		if !used[i] {
			t.Errorf("kube-score does not find %+v any more", exception)
		}
	}
}

type finding struct{ object, check, container, summary string }

// excepts finds the exceptions of a finding, and marks them as used.
func excepts(used []bool, chart string, found finding) bool {
	excepted := false
	for i, exception := range scoreExceptions {
		if (exception.chart == "*" || exception.chart == chart) &&
			(exception.object == "*" || exception.object == found.object) &&
			(exception.container == "*" || exception.container == found.container) &&
			exception.check == found.check && exception.finding == found.summary {
			used[i], excepted = true, true
		}
	}
	return excepted
}

// score returns what kube-score does not grade as good.
func score(t *testing.T, program, text string) []finding {
	t.Helper()
	command := exec.Command(program, "score", "--output-format", "json", "--kubernetes-version", "v1.34", "-")
	command.Stdin = strings.NewReader(text)
	// Its status is 1 for any finding.
	output, err := command.Output()
	if _, exited := err.(*exec.ExitError); err != nil && !exited {
		t.Fatal(err)
	}
	var objects []struct {
		TypeMeta struct{ Kind string } `json:"type_meta"`
		Checks   []struct {
			Check    struct{ ID string }
			Grade    int
			Skipped  bool
			Comments []struct{ Path, Summary string }
		}
	}
	if err := json.Unmarshal(output, &objects); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	if len(objects) < 3 {
		t.Fatalf("kube-score read %d objects only:\n%s", len(objects), output)
	}
	const good = 10
	var all []finding
	for _, object := range objects {
		for _, check := range object.Checks {
			if check.Skipped || check.Grade >= good {
				continue
			}
			if len(check.Comments) == 0 {
				t.Errorf("%s has the grade %d without a reason: %s", check.Check.ID, check.Grade, fmt.Sprint(object.TypeMeta))
			}
			for _, comment := range check.Comments {
				all = append(all, finding{object.TypeMeta.Kind, check.Check.ID, comment.Path, comment.Summary})
			}
		}
	}
	return all
}
