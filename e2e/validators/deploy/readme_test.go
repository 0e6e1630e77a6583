package deploy

import (
	"fmt"
	"strings"
	"testing"
)

// The overlays that deploy/README.md shows, built from its text.
func TestOverlaysOfTheReadmeBuild(t *testing.T) {
	var overlays, patches []string
	for _, block := range yamlBlocks(t) {
		switch {
		case strings.HasPrefix(block, "apiVersion: kustomize.config.k8s.io"):
			overlays = append(overlays, block)
		case strings.HasPrefix(block, "patches:"):
			patches = append(patches, block)
		}
	}
	if len(overlays) != 1 || len(patches) != 4 {
		t.Fatalf("the README shows %d overlays and %d patches", len(overlays), len(patches))
	}

	images := map[string]bool{}
	for _, read := range parse(t, build(t, overlays[0])) {
		collectImages(read, images)
	}
	for _, image := range []string{"csi-attacher", "csi-mock-driver", "csi-mock-driver-node"} {
		if !images["your.registry/"+image+":0.1.0"] {
			t.Errorf("the overlay does not set the registry of %s: %v", image, images)
		}
	}

	base := "resources: [path/to/deploy/base]\n"
	expectSame(t, helm(t, "csi-attacher", "csi-attacher", "csi-attacher", "driver.name=disk.example.com").installed(),
		parse(t, build(t, base+patches[0])), notInCharts...)

	base += "components: [path/to/deploy/components/monitoring]\n"
	monitor := parse(t, build(t, base+patches[1]))["ServiceMonitor csi-attacher/csi-attacher"]
	if label := monitor["metadata"].(object)["labels"].(object)["release"]; label != "kube-prometheus-stack" {
		t.Errorf("the patch sets the label to %v", label)
	}

	authenticated := strings.Replace(base, "monitoring]", "monitoring, path/to/deploy/components/authenticated-metrics]", 1)
	for patch, value := range map[string]string{
		patches[2]: "metrics.authentication.certificateSecret=csi-attacher-http",
		patches[3]: "serviceMonitor.tokenSecret=csi-attacher-scraper",
	} {
		chart := helm(t, "csi-attacher", "csi-attacher", "csi-attacher", "serviceMonitor.enabled=true,prometheusRule.enabled=true,"+
			"dashboard.enabled=true,metrics.authentication.enabled=true", value)
		expectSame(t, chart.installed(), parse(t, asTheChartKnows(build(t, authenticated+patch))), notInCharts...)
	}
}

// The account whose token the ServiceMonitor may name, with the role of the component.
func TestScraperOfTheReadmeMayReadMetrics(t *testing.T) {
	var scraper objects
	for _, block := range yamlBlocks(t) {
		if strings.HasPrefix(block, "# scraper.yaml\n") {
			scraper = parse(t, block)
		}
	}
	scraper.checkFields(t)
	account := "csi-attacher-scraper"
	secret := scraper["Secret csi-attacher/"+account]
	if field(secret, "metadata", "annotations")["kubernetes.io/service-account.name"] != account {
		t.Errorf("the Secret is %v", secret)
	}
	binding := scraper["ClusterRoleBinding /"+account]
	role := kustomize(t, "base", "authenticated-metrics")["ClusterRole /"+fmt.Sprint(field(binding, "roleRef")["name"])]
	if rules := fmt.Sprint(role["rules"]); rules != "[map[nonResourceURLs:[/metrics] verbs:[get]]]" {
		t.Errorf("the account of %v gets %s", binding, rules)
	}
}

// The two kustomizations for a second driver in the cluster.
func TestSecondDriverOfTheReadmeBuilds(t *testing.T) {
	files := map[string]string{
		"attacher/driver.yaml": readFile(t, "deploy/overlays/mock-driver/driver.yaml"),
		"csidriver.yaml":       readFile(t, "deploy/overlays/mock-driver/csidriver.yaml"),
	}
	for _, block := range yamlBlocks(t) {
		for _, name := range []string{"attacher/kustomization.yaml", "kustomization.yaml"} {
			if strings.HasPrefix(block, "# "+name+"\n") {
				files[name] = block
			}
		}
	}
	built := parse(t, buildFiles(t, files))
	built.checkFields(t)
	// No object has the name of one of a first driver's.
	for name := range kustomize(t, "base") {
		if _, same := built[name]; same {
			t.Errorf("the base makes %s, too", name)
		}
	}
	for _, name := range []string{
		"CSIDriver /mock.csi.local", "Namespace /other-driver", "ClusterRole /csi-attacher-other-driver",
		"Deployment other-driver/csi-attacher-other-driver",
	} {
		if _, found := built[name]; !found {
			t.Errorf("%s is missing", name)
		}
	}
}

// yamlBlocks returns the YAML that deploy/README.md shows.
func yamlBlocks(t *testing.T) []string {
	t.Helper()
	var blocks []string
	for _, block := range strings.Split(readFile(t, "deploy/README.md"), "```yaml\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		blocks = append(blocks, block)
	}
	return blocks
}

func collectImages(value any, images map[string]bool) {
	switch value := value.(type) {
	case object:
		if image, ok := value["image"]; ok {
			images[fmt.Sprint(image)] = true
		}
		for _, field := range value {
			collectImages(field, images)
		}
	case []any:
		for _, item := range value {
			collectImages(item, images)
		}
	}
}
