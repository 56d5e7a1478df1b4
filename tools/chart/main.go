// Renders a Helm chart as `helm template` does and decodes what comes out into the types of the Kubernetes API
// (`make chart`): a field that the API does not have, or one that is given twice, is an error.
//
// Usage: chart FOLDER [SET...], where SET is name=value as in `helm template --set`. The manifests go to the
// standard output, one YAML document each; exit code 1 if one is not valid.
package main

import (
	"fmt"
	"os"
	"path"
	"sort"
	"strings"

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
			} else {
				fmt.Fprintf(os.Stderr, "%s: %s\n", name, kind.Kind)
			}
			fmt.Printf("---\n# Source: %s\n%s\n", name, strings.TrimSpace(documents[key]))
		}
	}
}
