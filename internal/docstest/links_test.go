package docstest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// documents are all Markdown files of the repository, as paths from its root.
func documents(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "node_modules" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestLinksBetweenDocumentsResolve(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)[^)]*\)`)
	for _, name := range documents(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, name), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := filepath.Join(root, filepath.Dir(filepath.FromSlash(name)), filepath.FromSlash(m[1]))
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
			}
		}
	}
}

// Where the documentation says that a test proves something there is such a test,
// in the package that it names: `internal/x: TestY`.
func TestTestsThatAreNamedAsProofExist(t *testing.T) {
	proof := regexp.MustCompile("`([a-z][a-z0-9/_-]*): ((?:Test|Fuzz|Example|Benchmark)[A-Za-z0-9_]*)`")
	for _, name := range documents(t) {
		for _, m := range proof.FindAllStringSubmatch(read(t, name), -1) {
			files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(m[1]), "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, file := range files {
				src, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				found = found || regexp.MustCompile(`(?m)^func `+m[2]+`\(`).Match(src)
			}
			if !found {
				t.Errorf("%s names %s in %s as proof, which is not there", name, m[2], m[1])
			}
		}
	}
}
