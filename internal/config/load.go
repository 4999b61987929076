package config

import (
	"fmt"
	"io"
	"os"
	"reflect"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Load reads the file at path, the environment on top of it, and checks the
// whole. An empty path is an empty file. The error of a configuration that is
// refused wraps Problems.
func Load(path string, getenv func(string) string) (*Config, error) {
	var src []byte
	if path != "" {
		var err error
		if src, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("configuration: %w; pass an existing file with --config", err)
		}
	}
	c, problems := parse(src, getenv)
	if len(problems) == 0 {
		c.path, c.source, c.getenv = path, src, getenv
		return c, nil
	}
	where := path
	if where == "" {
		where = "environment"
	}
	return nil, fmt.Errorf("configuration refused, %s:\n  %w", where, problems.sorted())
}

func parse(src []byte, getenv func(string) string) (*Config, Problems) {
	c := Default()
	d := &decoder{getenv: getenv, lines: map[string]int{}, anchors: map[string]ast.Node{}}
	d.document(src, reflect.ValueOf(c))
	d.environment("", reflect.ValueOf(c).Elem())
	if len(c.Policies) == 0 {
		c.Policies = defaultPolicies()
	}
	c.validate(d.invalid)
	return c, d.problems
}

// Print writes the effective configuration as YAML that Load accepts, secrets masked.
func (c *Config) Print(w io.Writer) error {
	text, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	_, err = w.Write(text)
	return err
}

// WithoutPolicies returns the settings that hold from start to end of a service.
func (c *Config) WithoutPolicies() Config {
	settings := *c
	settings.Policies, settings.DefaultPolicy = nil, ""
	settings.path, settings.source, settings.getenv = "", nil, nil
	return settings
}
