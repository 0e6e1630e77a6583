package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The component must change every path, and nothing else.
func TestKubeletDirectoryIsReplacedEverywhere(t *testing.T) {
	text := kustomizeText(t, "overlays/mock-driver-nodes")
	if strings.Count(text, "/var/lib/kubelet") < 5 {
		t.Fatalf("the overlay hardly mentions kubelet's directory:\n%s", text)
	}
	expected := parse(t, strings.ReplaceAll(text, "/var/lib/kubelet", "/var/lib/k0s/kubelet"))
	found := kustomize(t, "overlays/mock-driver-nodes", "kubelet-directory")
	found.checkFields(t)
	expectSame(t, found, expected)
}

// The attacher listens on loopback only, and every client of its port uses the proxy's.
func TestKubeRBACProxyServesThePort(t *testing.T) {
	built := kustomize(t, "overlays/mock-driver", "monitoring", "kube-rbac-proxy")
	built.checkFields(t)
	attacher := container(t, built, "csi-attacher")
	if !slices.Contains(attacher["args"].([]any), any("--http-endpoint=127.0.0.1:8080")) {
		t.Errorf("the attacher's arguments are %v", attacher["args"])
	}
	if ports, _ := attacher["ports"].([]any); len(ports) > 0 {
		t.Errorf("the attacher has the ports %v", ports)
	}
	base := container(t, kustomize(t, "base"), "csi-attacher")["args"].([]any)
	if len(base) != len(attacher["args"].([]any)) {
		t.Errorf("the base's arguments are %v, the component's %v", base, attacher["args"])
	}
	port := container(t, built, "kube-rbac-proxy")["ports"].([]any)[0].(object)
	if port["name"] != "http" {
		t.Errorf("Service and NetworkPolicy do not find the port %v", port)
	}
	for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		asked := attacher[probe].(object)["httpGet"].(object)
		ignored := false
		for _, arg := range container(t, built, "kube-rbac-proxy")["args"].([]any) {
			paths, found := strings.CutPrefix(fmt.Sprint(arg), "--ignore-paths=")
			ignored = ignored || found && slices.Contains(strings.Split(paths, ","), fmt.Sprint(asked["path"]))
		}
		if asked["scheme"] != "HTTPS" || fmt.Sprint(asked["port"]) != fmt.Sprint(port["containerPort"]) || !ignored {
			t.Errorf("%s is %v", probe, asked)
		}
	}
	monitor := built["ServiceMonitor csi-mock-driver/csi-attacher"]["spec"].(object)["endpoints"].([]any)[0].(object)
	if monitor["scheme"] != "https" || monitor["path"] != "/metrics" || monitor["bearerTokenFile"] == nil {
		t.Errorf("the ServiceMonitor's endpoint is %v", monitor)
	}

	rolledBack := container(t, kustomize(t, "base", "kube-rbac-proxy", "go-sidecar"), "csi-attacher")
	if rolledBack["readinessProbe"] != nil || rolledBack["startupProbe"] != nil {
		t.Errorf("the Go sidecar has probes that it does not serve: %v", rolledBack)
	}
}

// container returns a container of the attacher's Deployment.
func container(t *testing.T, built objects, name string) object {
	t.Helper()
	for key, read := range built {
		if !strings.HasPrefix(key, "Deployment ") {
			continue
		}
		template := read["spec"].(object)["template"].(object)
		for _, found := range template["spec"].(object)["containers"].([]any) {
			if found.(object)["name"] == name {
				return found.(object)
			}
		}
	}
	t.Fatalf("no Deployment has a container %s", name)
	return nil
}

// The objects that charts and kustomize make differ in kind; this compares kustomizations with the API's own types.
func TestKustomizationsHaveNoUnknownFields(t *testing.T) {
	for _, kustomization := range []string{
		"base", "overlays/existing-driver", "overlays/mock-driver", "overlays/mock-driver-nodes",
		"overlays/mock-driver-snapshots", "overlays/mock-driver-group-snapshots",
		"overlays/mock-driver-snapshot-metadata",
	} {
		parse(t, kustomizeText(t, kustomization)).checkFields(t)
	}
	for _, component := range []string{"explain", "finalizers-only", "go-sidecar", "kube-rbac-proxy", "monitoring", "openshift", "publish-secrets"} {
		kustomize(t, "base", component).checkFields(t)
	}
}
