package rls

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// LoadOptions say how a directory is read. The zero value is valid.
type LoadOptions struct {
	// MergeDomains lets several files add to one domain, overriding the default,
	// by which a domain stands in one file only.
	MergeDomains bool
}

// maxFile is the largest file that is read, in bytes.
const maxFile = 16 << 20

// Load reads all files of rules below dir; those whose name begins with a dot
// are left out, as are directories so named (Kubernetes keeps its versions of a
// mounted map there). A set with any problem is refused as a whole: the error
// wraps ErrRules and names file and line of each. Warnings are about what is
// accepted and has no effect.
func Load(dir string, o LoadOptions) (rules *Rules, warnings []Problem, err error) {
	files, err := list(dir)
	if err != nil {
		return nil, nil, err
	}
	rules = &Rules{domains: map[string]*domain{}}
	var wrong []Problem
	for _, f := range files {
		src, err := os.ReadFile(filepath.Join(dir, f.name))
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrRules, err)
		}
		p, w := rules.add(f.name, src, o)
		wrong, warnings = append(wrong, p...), append(warnings, w...)
	}
	if len(files) == 0 {
		wrong = append(wrong, Problem{File: dir, Text: "holds no file of rules; put one there, or choose another directory with rls.config_dir"})
	}
	if len(wrong) > 0 {
		return nil, warnings, problems(sorted(wrong))
	}
	return rules, warnings, nil
}

// add reads one file into r.
func (r *Rules) add(name string, src []byte, o LoadOptions) (wrong, warnings []Problem) {
	in := &reader{file: name, anchors: map[string]ast.Node{}}
	in.parseDomain(src, r.domains, o.MergeDomains)
	return in.problems, in.warnings
}

// file is what tells one version of a file from another.
type file struct {
	name     string // below the directory
	size     int64
	modified int64 // unix ns
}

// list returns the files of rules below dir in the order of their names.
func list(dir string) ([]file, error) {
	var files []file
	// A trailing separator has a symbolic link followed, should dir be one.
	root := filepath.Clean(dir) + string(filepath.Separator)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path == root:
			return nil
		case strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return nil
		}
		info, err := os.Stat(path) // of what a link leads to
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // replaced while we look: the next look finds it
		case err != nil:
			return err
		case !info.Mode().IsRegular():
			return nil
		case info.Size() > maxFile:
			return fmt.Errorf("%s has %d bytes, at most %d are read", path, info.Size(), maxFile)
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files = append(files, file{name, info.Size(), info.ModTime().UnixNano()})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w; name a directory that this process may read with rls.config_dir", ErrRules, err)
	}
	return files, nil
}
