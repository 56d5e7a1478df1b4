// Renders a Helm chart as `helm template` does and looks at what comes out in two ways. Decoding into the types of
// the Kubernetes API finds a field that the API does not have, one that is given twice, and values of another type.
// kubeconform, with the schemas in the folder kubernetes, also finds fields that the API requires and nobody gave.
//
// Usage: chart FOLDER [SET...], where SET is name=value as in `helm template --set`. The manifests go to the
// standard output, one YAML document each; exit code 1 if one is not valid.
package main

import (
	"embed"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"github.com/yannh/kubeconform/pkg/validator"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"helm.sh/helm/v3/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

//go:generate go run ./schemas

//go:embed kubernetes/*.json
var schemas embed.FS

// conformer is kubeconform with our schemas, which it reads from a folder.
func conformer(folder string) validator.Validator {
	files, err := schemas.ReadDir("kubernetes")
	if err != nil {
		fail("%v", err)
	}
	for _, file := range files {
		schema, err := schemas.ReadFile("kubernetes/" + file.Name())
		if err != nil {
			fail("%v", err)
		}
		if err := os.WriteFile(filepath.Join(folder, file.Name()), schema, 0o600); err != nil {
			fail("%v", err)
		}
	}
	where := filepath.Join(folder, "{{ .ResourceKind }}{{ .KindSuffix }}.json")
	made, err := validator.New([]string{where}, validator.Opts{Strict: true})
	if err != nil {
		fail("%v", err)
	}
	return made
}

// conforms returns what kubeconform has to say against a manifest, "" if nothing.
func conforms(validate validator.Validator, name, manifest string) string {
	said := []string{}
	for _, result := range validate.Validate(name, io.NopCloser(strings.NewReader(manifest))) {
		switch result.Status {
		case validator.Valid, validator.Empty:
		case validator.Invalid:
			said = append(said, fmt.Sprint(result.Err))
		default:
			said = append(said, fmt.Sprintf("%v (`go generate` in tools/chart writes schemas)", result.Err))
		}
	}
	return strings.Join(said, "; ")
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "chart: "+format+"\n", args...)
	os.Exit(1)
}

func main() {
	if len(os.Args) < 2 {
		fail("say which folder has the chart")
	}
	chart, err := loader.Load(os.Args[1])
	if err != nil {
		fail("%v", err)
	}
	given := map[string]any{}
	for _, set := range os.Args[2:] {
		if err := strvals.ParseInto(set, given); err != nil {
			fail("%s: %v", set, err)
		}
	}
	release := chartutil.ReleaseOptions{Name: "log", Namespace: "brokers", Revision: 1, IsInstall: true}
	values, err := chartutil.ToRenderValues(chart, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		fail("%v", err)
	}
	rendered, err := engine.Engine{Strict: true}.Render(chart, values)
	if err != nil {
		fail("%v", err)
	}
	known := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, policyv1.AddToScheme} {
		if err := add(known); err != nil {
			fail("%v", err)
		}
	}
	decoder := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	folder, err := os.MkdirTemp("", "chart-")
	if err != nil {
		fail("%v", err)
	}
	validate := conformer(folder)
	problems := []string{}
	names := []string{}
	for name := range rendered {
		if path.Ext(name) == ".yaml" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names {
		documents := releaseutil.SplitManifests(rendered[name])
		keys := releaseutil.BySplitManifestsOrder{}
		for key := range documents {
			keys = append(keys, key)
		}
		sort.Sort(keys)
		for _, key := range keys {
			if _, kind, err := decoder.Decode([]byte(documents[key]), nil, nil); err != nil {
				fail("%s: %v", name, err)
			} else if said := conforms(validate, name, documents[key]); said != "" {
				problems = append(problems, fmt.Sprintf("%s: %s", name, said))
			} else {
				fmt.Fprintf(os.Stderr, "%s: %s\n", name, kind.Kind)
			}
			fmt.Printf("---\n# Source: %s\n%s\n", name, strings.TrimSpace(documents[key]))
		}
	}
	os.RemoveAll(folder)
	if len(problems) > 0 {
		fail("%s", strings.Join(problems, "\nchart: "))
	}
}
