// Package deploy tests the charts and kustomizations of the repository with the libraries of the tools that read them: Helm and
// kustomize.
package deploy

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	root   = "../../.."
	charts = root + "/deploy/charts"
)

func init() {
	// Helm reports each link in a chart.
	slog.SetLogLoggerLevel(slog.LevelWarn)
}

// An object as YAML gives it.
type object = map[string]any

// Objects by kind, namespace and name.
type objects map[string]object

// release renders a chart as `helm install NAME CHART --namespace NAMESPACE` does, with a file of values or with --set.
func release(chart, name, namespace string, values ...string) (map[string]string, error) {
	return releaseWith(chart, name, namespace, nil, values...)
}

// releaseWith is release on a cluster that serves more APIs.
func releaseWith(chart, name, namespace string, apis []string, values ...string) (map[string]string, error) {
	loaded, err := loader.Load(filepath.Join(charts, chart))
	if err != nil {
		return nil, err
	}
	set := map[string]any{}
	for _, value := range values {
		// A file of values, or one value.
		if strings.HasSuffix(value, ".yaml") {
			if set, err = common.ReadValuesFile(filepath.Join(charts, chart, value)); err != nil {
				return nil, err
			}
			continue
		}
		if err := strvals.ParseInto(value, set); err != nil {
			return nil, err
		}
	}
	options := common.ReleaseOptions{Name: name, Namespace: namespace, Revision: 1, IsInstall: true}
	// Validates the values against the schema.
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.APIVersions = append(capabilities.APIVersions, apis...)
	rendered, err := util.ToRenderValues(loaded, set, options, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(loaded, rendered)
}

func helm(t *testing.T, chart, name, namespace string, values ...string) objects {
	t.Helper()
	files, err := release(chart, name, namespace, values...)
	if err != nil {
		t.Fatalf("render %s with %q: %v", chart, values, err)
	}
	return parse(t, stream(files))
}

// installed drops the objects that only `helm test` creates.
func (all objects) installed() objects {
	installed := maps.Clone(all)
	maps.DeleteFunc(installed, func(_ string, read object) bool {
		return field(read, "metadata", "annotations")["helm.sh/hook"] == "test"
	})
	return installed
}

// stream joins the objects of a release.
func stream(files map[string]string) string {
	var text strings.Builder
	for _, file := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(file, ".yaml") {
			fmt.Fprintf(&text, "\n---\n%s", files[file])
		}
	}
	return text.String()
}

// kustomize builds a kustomization of deploy/ with components on top.
func kustomize(t *testing.T, resource string, components ...string) objects {
	t.Helper()
	text := kustomizeText(t, resource, components...)
	return parse(t, text)
}

func kustomizeText(t *testing.T, resource string, components ...string) string {
	t.Helper()
	overlay := fmt.Sprintf("resources: [path/to/deploy/%s]\ncomponents:\n", resource)
	for _, component := range components {
		overlay += fmt.Sprintf("  - path/to/deploy/components/%s\n", component)
	}
	if len(components) > 0 && resource != "base" {
		overlay += "namespace: csi-mock-driver\n"
	}
	return build(t, overlay)
}

// build builds a kustomization in a directory of its own.
func build(t *testing.T, overlay string) string {
	t.Helper()
	return buildFiles(t, map[string]string{"kustomization.yaml": overlay})
}

// buildFiles builds a kustomization of several files, in which path/to/deploy leads to deploy/.
func buildFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tree, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		// kustomize takes relative paths only.
		relative, err := filepath.Rel(filepath.Dir(file), tree)
		if err != nil {
			t.Fatal(err)
		}
		text = strings.ReplaceAll(text, "path/to/deploy", filepath.Join(relative, "deploy"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("build\n%s\n%v", files["kustomization.yaml"], err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func parse(t *testing.T, text string) objects {
	t.Helper()
	found := objects{}
	for _, document := range strings.Split("\n"+text, "\n---\n") {
		var read object
		if err := yaml.UnmarshalStrict([]byte(document), &read); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if len(read) == 0 {
			continue
		}
		if strings.HasSuffix(fmt.Sprint(read["kind"]), "SnapshotClass") {
			// kustomize does not know that these kinds are cluster-scoped; kubectl drops the namespace.
			delete(read["metadata"].(object), "namespace")
		}
		name := key(read)
		if _, twice := found[name]; twice {
			t.Fatalf("there are two of %s", name)
		}
		found[name] = read
	}
	return found
}

func key(read object) string {
	metadata, _ := read["metadata"].(object)
	namespace, _ := metadata["namespace"].(string)
	return fmt.Sprintf("%v %s/%v", read["kind"], namespace, metadata["name"])
}

// checkFields decodes every object of a built-in kind as the API server does with strict field validation.
func (all objects) checkFields(t *testing.T) {
	t.Helper()
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme,
		json.SerializerOptions{Yaml: true, Strict: true})
	for name, read := range all {
		text, err := yaml.Marshal(read)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := strict.Decode(text, nil, nil); err != nil && !runtime.IsNotRegisteredError(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
