// Package check renders the Helm chart and loads the compose file with the
// programs' own libraries, and holds the result against Kubernetes' and Compose's
// own types. It is a module of its own, so that their graphs weigh on nobody.
package check

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// render returns the chart's objects, decoded strictly into Kubernetes' types.
func render(t *testing.T, values map[string]any) (objects []any) {
	t.Helper()
	c, err := loader.Load("../helm/tallygate")
	if err != nil {
		t.Fatal(err)
	}
	release := common.ReleaseOptions{Name: "trial", Namespace: "apis"}
	all, err := util.ToRenderValues(c, values, release, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	rendered, err := engine.Render(c, all)
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range rendered {
		if !strings.HasSuffix(path, ".yaml") {
			continue
		}
		for _, document := range strings.Split(content, "\n---") {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
				t.Fatalf("%s: %v\n%s", path, err, document)
			}
			var object any
			switch kind.APIVersion + " " + kind.Kind {
			case " ":
				continue // nothing but a separator
			case "apps/v1 Deployment":
				object = &appsv1.Deployment{}
			case "autoscaling/v2 HorizontalPodAutoscaler":
				object = &autoscalingv2.HorizontalPodAutoscaler{}
			case "networking.k8s.io/v1 NetworkPolicy":
				object = &networkingv1.NetworkPolicy{}
			case "policy/v1 PodDisruptionBudget":
				object = &policyv1.PodDisruptionBudget{}
			case "v1 ConfigMap":
				object = &corev1.ConfigMap{}
			case "v1 Service":
				object = &corev1.Service{}
			case "v1 ServiceAccount":
				object = &corev1.ServiceAccount{}
			default:
				t.Fatalf("%s has an unexpected %s %s", path, kind.APIVersion, kind.Kind)
			}
			if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
				t.Errorf("%s: %v\n%s", path, err, document)
			}
			objects = append(objects, object)
		}
	}
	return objects
}

func of[T any](objects []any) (some []T) {
	for _, o := range objects {
		if v, ok := o.(T); ok {
			some = append(some, v)
		}
	}
	return some
}

func TestTheChartIsValidAndItsPodsAreConfined(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"as it comes": {},
		"with a rate limit service": {
			"rls": map[string]any{"edge.yaml": "domain: edge\n"}, "podAnnotations": map[string]any{"a": "b"},
			"enforcer":      map[string]any{"autoscaling": map[string]any{"enabled": false}, "replicas": 3, "env": map[string]any{"TALLYGATE_LOG_LEVEL": "debug"}},
			"networkPolicy": map[string]any{"stores": []any{map[string]any{"ipBlock": map[string]any{"cidr": "10.0.0.0/8"}}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := render(t, values)
			deployments := of[*appsv1.Deployment](objects)
			if len(deployments) != 3 || len(of[*policyv1.PodDisruptionBudget](objects)) != 3 || len(of[*networkingv1.NetworkPolicy](objects)) != 3 || len(of[*corev1.Service](objects)) != 2 {
				t.Errorf("%d objects", len(objects))
			}
			for _, d := range deployments {
				pod := d.Spec.Template.Spec
				c := pod.Containers[0]
				if c.StartupProbe == nil || c.LivenessProbe == nil || c.ReadinessProbe == nil || c.ReadinessProbe.HTTPGet.Path != "/readyz" {
					t.Errorf("%s lacks a probe", d.Name)
				}
				if c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
					t.Errorf("%s has no resources", d.Name)
				}
				if !*pod.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation || *pod.AutomountServiceAccountToken {
					t.Errorf("%s is not confined", d.Name)
				}
				for _, e := range c.Env {
					if strings.HasSuffix(e.Name, "_URL") && (e.Value != "" || e.ValueFrom.SecretKeyRef == nil) {
						t.Errorf("%s: %s is not taken from a Secret", d.Name, e.Name)
					}
				}
				// What selects pods must select these, or nothing is balanced.
				for key, value := range d.Spec.Selector.MatchLabels {
					if d.Spec.Template.Labels[key] != value {
						t.Errorf("%s does not select its own pods by %s", d.Name, key)
					}
				}
			}
		})
	}
}

func TestTheEnforcerScalesUnlessToldOtherwise(t *testing.T) {
	enforcer := func(objects []any) *appsv1.Deployment {
		all := of[*appsv1.Deployment](objects)
		i := slices.IndexFunc(all, func(d *appsv1.Deployment) bool { return strings.HasSuffix(d.Name, "enforcer") })
		return all[i]
	}
	scaled := render(t, nil)
	if len(of[*autoscalingv2.HorizontalPodAutoscaler](scaled)) != 1 || enforcer(scaled).Spec.Replicas != nil {
		t.Error("the autoscaler and the chart would both set the replicas")
	}
	fixed := render(t, map[string]any{"enforcer": map[string]any{"autoscaling": map[string]any{"enabled": false}}})
	if len(of[*autoscalingv2.HorizontalPodAutoscaler](fixed)) != 0 || *enforcer(fixed).Spec.Replicas != 2 {
		t.Error("a fixed number of replicas is not fixed")
	}
}

func TestValuesThatMeanNothingAreRefused(t *testing.T) {
	c, err := loader.Load("../helm/tallygate")
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range map[string]map[string]any{
		"an unknown key":     {"enforcers": map[string]any{}},
		"a foreign variable": {"tracker": map[string]any{"env": map[string]any{"PATH": "/"}}},
		"replicas as words":  {"indexer": map[string]any{"replicas": "two"}},
		"a secret by value":  {"redis": map[string]any{"url": "redis://user:secret@redis"}},
	} {
		if _, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: "trial"}, common.DefaultCapabilities); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestComposeReadsItsFile(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{"../compose.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"enforcer", "tracker", "indexer"} {
		s := project.Services[name]
		if !s.ReadOnly || len(s.CapDrop) != 1 || *s.Environment["TALLYGATE_REDIS_URL"] == "" {
			t.Errorf("%s is %+v", name, s)
		}
	}
	if redis := project.Services["redis"].Command; !slices.Contains(redis, "E$") {
		t.Errorf("Redis is started with %v", redis)
	}
}
