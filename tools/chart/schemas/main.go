// Cuts the schemas of the chart's kinds out of the OpenAPI document of Kubernetes and writes one JSON Schema for
// each into the folder ../kubernetes, as kubeconform looks for them. `go generate` in tools/chart runs it; the
// files are kept, so that tests need neither the network nor all of Kubernetes.
//
// Objects take no fields that the API does not have, as in kubeconform's strict schemas.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const module = "k8s.io/kubernetes@v1.34.0"

var kinds = map[string]string{
	"configmap-v1":                  "io.k8s.api.core.v1.ConfigMap",
	"service-v1":                    "io.k8s.api.core.v1.Service",
	"statefulset-apps-v1":           "io.k8s.api.apps.v1.StatefulSet",
	"poddisruptionbudget-policy-v1": "io.k8s.api.policy.v1.PodDisruptionBudget",
}

const prefix = "#/definitions/"

func main() {
	out, err := exec.Command("go", "mod", "download", "-json", module).Output()
	check(err)
	var found struct{ Dir string }
	check(json.Unmarshal(out, &found))
	text, err := os.ReadFile(filepath.Join(found.Dir, "api", "openapi-spec", "swagger.json"))
	check(err)
	var document struct{ Definitions map[string]map[string]any }
	check(json.Unmarshal(text, &document))
	for file, name := range kinds {
		used := map[string]any{}
		collect(document.Definitions, name, used)
		schema := map[string]any{"$ref": prefix + name, "definitions": used}
		written, err := json.MarshalIndent(schema, "", " ")
		check(err)
		check(os.WriteFile(filepath.Join("kubernetes", file+".json"), append(written, '\n'), 0o644))
	}
}

// collect adds a definition and all that it refers to.
func collect(all map[string]map[string]any, name string, used map[string]any) {
	if _, is := used[name]; is {
		return
	}
	definition := all[name]
	if definition == nil {
		check(fmt.Errorf("%s is not in the document", name))
	}
	switch {
	case definition["format"] == "int-or-string", strings.HasSuffix(name, ".Quantity"):
		used[name] = map[string]any{"type": []string{"string", "integer", "number"}}
		return
	case strings.HasSuffix(name, ".JSONSchemaProps"):
		used[name] = map[string]any{}
		return
	}
	if definition["properties"] != nil {
		definition["additionalProperties"] = false
	}
	used[name] = strip(definition)
	visit(definition, func(to string) { collect(all, to, used) })
}

// strip leaves out what only people and controllers read.
func strip(value any) any {
	switch one := value.(type) {
	case map[string]any:
		for key, inner := range one {
			// A property may be called description; only text under that name is one.
			if _, isText := inner.(string); (key == "description" && isText) || strings.HasPrefix(key, "x-") {
				delete(one, key)
			} else {
				strip(inner)
			}
		}
	case []any:
		for _, inner := range one {
			strip(inner)
		}
	}
	return value
}

func visit(value any, referred func(string)) {
	switch one := value.(type) {
	case map[string]any:
		if to, is := one["$ref"].(string); is {
			referred(strings.TrimPrefix(to, prefix))
		}
		for _, inner := range one {
			visit(inner, referred)
		}
	case []any:
		for _, inner := range one {
			visit(inner, referred)
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "schemas: %v\n", err)
		os.Exit(1)
	}
}
