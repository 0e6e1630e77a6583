package deploy

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Labels that name the release, or that Helm's conventions ask for on every object.
var releaseLabels = []string{
	"app.kubernetes.io/instance",
	"app.kubernetes.io/managed-by",
	"app.kubernetes.io/version",
	"helm.sh/chart",
}

// expectSame compares object by object what two renderings mean. Objects of the kinds in `without` exist only on the
// kustomize side.
func expectSame(t *testing.T, chart, kustomization objects, without ...string) {
	t.Helper()
	chart, kustomization = normalized(chart), normalized(kustomization)
	for name, wanted := range kustomization {
		if slices.Contains(without, fmt.Sprint(wanted["kind"])) {
			delete(kustomization, name)
		}
	}
	if len(kustomization) < 5 {
		t.Fatalf("only %d objects are left to compare", len(kustomization))
	}
	for _, name := range slices.Sorted(maps.Keys(kustomization)) {
		rendered, found := chart[name]
		if !found {
			t.Errorf("the chart does not make %s, only %v", name, slices.Sorted(maps.Keys(chart)))
			continue
		}
		for _, difference := range differences("", rendered, kustomization[name]) {
			t.Errorf("%s %s", name, difference)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(chart)) {
		if _, found := kustomization[name]; !found {
			t.Errorf("only the chart makes %s", name)
		}
	}
}

func normalized(all objects) objects {
	result := objects{}
	for name, read := range all {
		cleaned := withoutEmpty(read).(object)
		metadata := cleaned["metadata"].(object)
		if labels, ok := metadata["labels"].(object); ok {
			// The chart labels every object with its name; pods keep theirs, which selectors use.
			delete(labels, "app.kubernetes.io/name")
			if len(labels) == 0 {
				delete(metadata, "labels")
			}
		}
		result[name] = cleaned
	}
	return result
}

// Lists in which the order of the items, which have names, means nothing.
var unordered = []string{"containers", "volumes"}

// withoutEmpty drops what means nothing: the release's labels, null, labels that are empty without them, and order.
func withoutEmpty(value any) any {
	switch value := value.(type) {
	case object:
		kept := object{}
		for name, field := range value {
			if slices.Contains(releaseLabels, name) || field == nil {
				continue
			}
			cleaned := withoutEmpty(field)
			if labels, ok := cleaned.(object); ok && len(labels) == 0 && name == "labels" {
				continue
			}
			if items, ok := cleaned.([]any); ok && slices.Contains(unordered, name) {
				slices.SortFunc(items, func(a, b any) int {
					return strings.Compare(fmt.Sprint(a.(object)["name"]), fmt.Sprint(b.(object)["name"]))
				})
			}
			kept[name] = cleaned
		}
		return kept
	case []any:
		kept := make([]any, len(value))
		for i, item := range value {
			kept[i] = withoutEmpty(item)
		}
		return kept
	}
	return value
}

func differences(path string, chart, kustomization any) []string {
	if reflect.DeepEqual(chart, kustomization) {
		return nil
	}
	var found []string
	switch wanted := kustomization.(type) {
	case object:
		if read, ok := chart.(object); ok {
			both := maps.Clone(wanted)
			maps.Copy(both, read)
			for _, field := range slices.Sorted(maps.Keys(both)) {
				found = append(found, differences(path+"."+field, read[field], wanted[field])...)
			}
			return found
		}
	case []any:
		if read, ok := chart.([]any); ok && len(read) == len(wanted) {
			for i := range wanted {
				found = append(found, differences(fmt.Sprintf("%s[%d]", path, i), read[i], wanted[i])...)
			}
			return found
		}
	}
	return []string{fmt.Sprintf("%s: the chart has %v, kustomize %v", path, chart, kustomization)}
}

// named renames objects, and whatever refers to them, as the chart names them.
func named(t *testing.T, text string, names ...string) objects {
	t.Helper()
	renamed := parse(t, text)
	pairs := map[string]string{}
	for i := 0; i < len(names); i += 2 {
		pairs[names[i]] = names[i+1]
	}
	result := objects{}
	for _, read := range renamed {
		kind := fmt.Sprint(read["kind"])
		rename(read["metadata"], kind, pairs)
		if reference, ok := read["roleRef"].(object); ok {
			rename(reference, fmt.Sprint(reference["kind"]), pairs)
		}
		if subjects, ok := read["subjects"].([]any); ok {
			for _, subject := range subjects {
				rename(subject, "ServiceAccount", pairs)
			}
		}
		if spec, ok := read["spec"].(object); ok {
			if template, ok := spec["template"].(object); ok {
				pod := template["spec"].(object)
				if to, ok := pairs["ServiceAccount/"+fmt.Sprint(pod["serviceAccountName"])]; ok {
					pod["serviceAccountName"] = to
				}
			}
		}
		result[key(read)] = read
	}
	return result
}

func rename(named any, kind string, pairs map[string]string) {
	read := named.(object)
	kind = strings.TrimSuffix(kind, "Binding")
	if to, ok := pairs[kind+"/"+fmt.Sprint(read["name"])]; ok {
		read["name"] = to
	}
}
