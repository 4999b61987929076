package docstest

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tallygate/tallygate/internal/config"
)

var update = flag.Bool("update", false, "write generated documents instead of comparing them")

// The reference is made of the comments of the structs that are read, so that it
// cannot say anything else.
func TestConfigurationReferenceIsCurrent(t *testing.T) {
	const name = "docs/configuration.md"
	want := reference(t)
	if *update {
		if err := os.WriteFile(filepath.Join(root, name), []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, name); got != want {
		t.Errorf("%s does not say what the code says: run make docs", name)
	}
}

const preamble = `<!-- Made by make docs of the comments in internal/config. Do not edit. -->
# Configuration

One YAML file configures all services: ` + "`--config FILE`, the variable `TALLYGATE_CONFIG`, or `tallygate.yaml`" + ` in
the working directory. It is read strictly: unknown keys are refused, and all problems of a file are reported together, each with its line.
[tallygate.example.yaml](../tallygate.example.yaml) is a complete example. ` + "`--print-config`" + ` of each service prints the effective
configuration with secrets masked.

Every single value can be set from the environment too, which wins over the file: ` + "`TALLYGATE_`" + ` and the key in capitals, dots as
underscores, so ` + "`redis.url` is `TALLYGATE_REDIS_URL`" + `. Lists are separated by commas. Keys marked *secret* have a twin that names a file to read
the value from: ` + "`redis.password_file`, `TALLYGATE_REDIS_PASSWORD_FILE`" + `. Durations are written as 100ms, 10s, 5m, 36h, 7d.
`

func reference(t *testing.T) string {
	r := &referenceWriter{comments: commentsOf(t, filepath.Join(root, "internal/config"))}
	r.out.WriteString(preamble)
	r.section("", "General", reflect.ValueOf(*config.Default()))
	return r.out.String()
}

// commentsOf returns the comments of a package's types, by name, and of their
// fields, by Type.Field.
func commentsOf(t *testing.T, dir string) map[string]string {
	comments := map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range decl.Specs {
				spec, ok := s.(*ast.TypeSpec)
				if !ok {
					continue
				}
				structure, ok := spec.Type.(*ast.StructType)
				if !ok {
					continue
				}
				comments[spec.Name.Name] = text(decl.Doc, spec.Doc)
				for _, f := range structure.Fields.List {
					for _, name := range f.Names {
						comments[spec.Name.Name+"."+name.Name] = text(f.Doc, f.Comment)
					}
				}
			}
		}
	}
	return comments
}

func text(groups ...*ast.CommentGroup) string {
	for _, g := range groups {
		if g != nil {
			return strings.Join(strings.Fields(g.Text()), " ")
		}
	}
	return ""
}

type referenceWriter struct {
	comments map[string]string
	out      strings.Builder
}

// row is one key of a section.
type row struct{ key, value, what string }

// section writes the keys of a struct, then those of the structs within it.
func (w *referenceWriter) section(path, title string, v reflect.Value) {
	fmt.Fprintf(&w.out, "\n## %s\n", title)
	if path != "" {
		if doc := w.comments[v.Type().Name()]; doc != "" {
			fmt.Fprintf(&w.out, "\n%s\n", sentence(doc, v.Type().Name(), v.Type()))
		}
	}
	var rows []row
	var nested []func()
	w.fields(path, v, &rows, &nested)
	if len(rows) > 0 {
		w.out.WriteString("\n| key | default | |\n|---|---|---|\n")
		for _, r := range rows {
			fmt.Fprintf(&w.out, "| `%s` | %s | %s |\n", r.key, r.value, r.what)
		}
	}
	for _, write := range nested {
		write()
	}
}

func (w *referenceWriter) fields(path string, v reflect.Value, rows *[]row, nested *[]func()) {
	for i := range v.NumField() {
		f, value := v.Type().Field(i), v.Field(i)
		key, option, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if option == "inline" {
			w.fields(path, value, rows, nested)
			continue
		}
		if path != "" {
			key = path + "." + key
		}
		what := w.comments[v.Type().Name()+"."+f.Name]
		if what != "" {
			what = sentence(what, f.Name, v.Type())
		}
		inner, kind := f.Type, ""
		switch inner.Kind() {
		case reflect.Map:
			inner, kind = inner.Elem(), ".NAME"
		case reflect.Slice:
			inner, kind = inner.Elem(), "[]"
		}
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			if kind == "" && value.Kind() != reflect.Pointer {
				*nested = append(*nested, func() { w.section(key, "`"+key+"`", value) })
			} else {
				*nested = append(*nested, func() { w.section(key+kind, "`"+key+kind+"`", reflect.New(inner).Elem()) })
			}
			continue
		}
		if f.Type == reflect.TypeFor[config.Secret]() || f.Type == reflect.TypeFor[config.SecretURL]() {
			what = strings.TrimSpace("*secret* " + what)
		}
		byDefault := defaultOf(value)
		what = strings.Replace(what, " Default "+strings.Trim(byDefault, "`")+".", "", 1) // the column says it
		*rows = append(*rows, row{key, byDefault, what})
	}
}

// sentence turns a Go comment into one that can stand beside a key: without the
// name that it begins with, and with keys in the place of sibling fields.
func sentence(comment, name string, siblings reflect.Type) string {
	if rest, ok := strings.CutPrefix(comment, name+" "); ok && !strings.HasPrefix(rest, "and ") {
		rest = strings.TrimPrefix(rest, "is ")
		if word, _, _ := strings.Cut(rest, " "); !strings.Contains(word, ":") { // an address keeps its case
			first, size := utf8.DecodeRuneInString(rest)
			rest = string(unicode.ToUpper(first)) + rest[size:]
		}
		comment = rest
	}
	for i := range siblings.NumField() {
		f := siblings.Field(i)
		if key, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); strings.Contains(key, "_") {
			comment = strings.ReplaceAll(comment, f.Name, "`"+key+"`")
		}
	}
	return strings.ReplaceAll(comment, "|", `\|`)
}

func defaultOf(v reflect.Value) string {
	if v.Kind() == reflect.Bool {
		return fmt.Sprintf("`%t`", v.Bool())
	}
	if v.IsZero() || v.Kind() == reflect.Slice {
		return ""
	}
	if d, ok := v.Interface().(time.Duration); ok {
		s := d.String()
		if strings.HasSuffix(s, "m0s") {
			s = strings.TrimSuffix(s, "0s")
		}
		if strings.HasSuffix(s, "h0m") {
			s = strings.TrimSuffix(s, "0m")
		}
		return "`" + s + "`"
	}
	return fmt.Sprintf("`%v`", v.Interface())
}
