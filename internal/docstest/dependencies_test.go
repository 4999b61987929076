// Package docstest keeps the documentation true: what it lists exists, and what it
// shows works.
package docstest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the repository, seen from this package.
const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEveryDirectDependencyIsExplained(t *testing.T) {
	explained := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\S+\.\S+/\S+) \| \S.* \| \S.* \|$`).FindAllStringSubmatch(read(t, "docs/dependencies.md"), -1) {
		explained[m[1]] = true
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:require |\t)(\S+) v\S+(.*)$`).FindAllStringSubmatch(read(t, "go.mod"), -1) {
		if module := m[1]; strings.Contains(m[2], "indirect") {
			continue
		} else if !explained[module] {
			t.Errorf("docs/dependencies.md has no complete line for %s: say what for and why not own code", module)
		} else {
			delete(explained, module)
		}
	}
	for module := range explained {
		t.Errorf("docs/dependencies.md explains %s, which go.mod does not require", module)
	}
}
