package indexer_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// description is an OpenAPI document, as far as the tests look at it.
type description struct {
	Paths map[string]struct {
		Get operation `yaml:"get"`
	} `yaml:"paths"`
	Components struct {
		Parameters map[string]parameter `yaml:"parameters"`
		Responses  map[string]response  `yaml:"responses"`
		Schemas    map[string]schema    `yaml:"schemas"`
	} `yaml:"components"`
}

type operation struct {
	Parameters []parameter         `yaml:"parameters"`
	Responses  map[string]response `yaml:"responses"`
}

type parameter struct {
	Ref  string `yaml:"$ref"`
	Name string `yaml:"name"`
	In   string `yaml:"in"`
}

type response struct {
	Ref     string `yaml:"$ref"`
	Content map[string]struct {
		Schema schema `yaml:"schema"`
	} `yaml:"content"`
}

type schema struct {
	Ref        string            `yaml:"$ref"`
	Type       string            `yaml:"type"`
	Required   []string          `yaml:"required"`
	Properties map[string]schema `yaml:"properties"`
	Items      *schema           `yaml:"items"`
	Enum       []string          `yaml:"enum"`
}

func describe(t *testing.T, server string) description {
	t.Helper()
	status, contentType, body := get(t, server+"/v1/openapi.yaml")
	if status != 200 || contentType != "application/yaml" {
		t.Fatalf("%d %s", status, contentType)
	}
	var d description
	if err := yaml.Unmarshal([]byte(body), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// resolve follows a reference within the document.
func resolve[T any](t *testing.T, all map[string]T, ref string) T {
	t.Helper()
	v, ok := all[ref[strings.LastIndex(ref, "/")+1:]]
	if !ok {
		t.Fatalf("there is no %s", ref)
	}
	return v
}

func (d description) parameters(t *testing.T, o operation) []string {
	var names []string
	for _, p := range o.Parameters {
		if p.Ref != "" {
			p = resolve(t, d.Components.Parameters, p.Ref)
		}
		if p.In == "query" {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// check reports where v is not as s says.
func (d description) check(t *testing.T, where string, s schema, v any) {
	if s.Ref != "" {
		s = resolve(t, d.Components.Schemas, s.Ref)
	}
	if s.Type == "" { // anything
		return
	}
	ok := true
	switch v := v.(type) {
	case map[string]any:
		ok = s.Type == "object"
		for name, member := range v {
			p, described := s.Properties[name]
			if !described {
				t.Errorf("%s.%s is not described", where, name)
			}
			d.check(t, where+"."+name, p, member)
		}
		for _, name := range s.Required {
			if _, there := v[name]; !there {
				t.Errorf("%s.%s is missing", where, name)
			}
		}
	case []any:
		ok = s.Type == "array"
		for i, e := range v {
			d.check(t, fmt.Sprintf("%s[%d]", where, i), *s.Items, e)
		}
	case string:
		ok = s.Type == "string" && (s.Enum == nil || slices.Contains(s.Enum, v))
	case float64:
		ok = s.Type == "integer" && v == float64(int64(v))
	case bool:
		ok = s.Type == "boolean"
	}
	if !ok {
		t.Errorf("%s: %v is not of type %q, enum %q", where, v, s.Type, s.Enum)
	}
}

func TestOpenAPIAndTheHandlersAgree(t *testing.T) {
	server := serve(t)
	d := describe(t, server)
	accepted := regexp.MustCompile(`no such parameter; there are ([a-z, ]+)$`)
	for path, item := range d.Paths {
		concrete := server + strings.ReplaceAll(path, "{token}", "alice")
		// What the handler accepts, in its own words.
		status, _, body := get(t, concrete+"?no-such-parameter=1")
		var p struct{ Detail string }
		if err := json.Unmarshal([]byte(body), &p); err != nil || status != http.StatusBadRequest {
			t.Fatalf("%s: %d %s", path, status, body)
		}
		var names []string
		if m := accepted.FindStringSubmatch(p.Detail); m != nil {
			names = strings.Split(m[1], ", ")
			slices.Sort(names)
		}
		if described := d.parameters(t, item.Get); !slices.Equal(described, names) {
			t.Errorf("%s takes %q, described are %q", path, names, described)
		}

		for suffix, code := range map[string]string{"": "200", "?no-such-parameter=1": "default"} {
			_, contentType, body := get(t, concrete+suffix)
			r := item.Get.Responses[code]
			if r.Ref != "" {
				r = resolve(t, d.Components.Responses, r.Ref)
			}
			content, ok := r.Content[contentType]
			if !ok {
				t.Errorf("%s: %s of type %s is not described", path, code, contentType)
				continue
			}
			var v any
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Fatal(err)
			}
			d.check(t, path, content.Schema, v)
		}
	}
	for _, path := range []string{"/v1/tokens", "/v1/tokens/{token}", "/v1/tokens/{token}/usage", "/v1/tokens/{token}/events", "/v1/groups", "/v1/top", "/v1/usage", "/v1/events"} {
		if _, ok := d.Paths[path]; !ok {
			t.Errorf("%s is not described", path)
		}
	}
	if len(d.Paths) != 8 {
		t.Errorf("%d paths are described, the API has 8", len(d.Paths))
	}
}
