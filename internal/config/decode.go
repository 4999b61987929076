package config

import (
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// decoder fills a struct from a YAML document and from the environment, and
// gathers every problem instead of stopping at the first.
type decoder struct {
	getenv   func(string) string
	problems Problems
	lines    map[string]int // key path → line, for problems found later
	anchors  map[string]ast.Node
}

func (d *decoder) problem(path string, line int, format string, args ...any) {
	d.problems = append(d.problems, Problem{Line: line, Key: path, Text: fmt.Sprintf(format, args...)})
}

// invalid adds a problem of a key whose value could be read, at its line or at
// that of what it should stand in. A value that could not be read has its default
// and is not judged again.
func (d *decoder) invalid(key, format string, args ...any) {
	for _, p := range d.problems {
		if p.Key == key || p.Key == EnvName(key) {
			return
		}
	}
	line, at := 0, key
	for line == 0 && at != "" {
		line = d.lines[at]
		at = at[:max(0, strings.LastIndexAny(at, ".["))]
	}
	d.problem(key, line, format, args...)
}

// document decodes src into target, a pointer to a struct.
func (d *decoder) document(src []byte, target reflect.Value) {
	file, err := parser.ParseBytes(src, 0)
	if err != nil {
		line := 0
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) {
			line = syntax.Token.Position.Line
			err = errors.New(syntax.Message)
		}
		d.problem("", line, "not valid YAML: %v", err)
		return
	}
	bodies := 0
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if bodies++; bodies > 1 {
			d.problem("", line(doc.Body), "a second YAML document begins here; put everything into one")
			return
		}
		d.value("", doc.Body, target.Elem())
	}
}

// value decodes one node into v.
func (d *decoder) value(path string, node ast.Node, v reflect.Value) {
	node = d.resolve(node)
	d.lines[path] = line(node)
	if node.Type() == ast.NullType {
		return // a key without a value keeps its default
	}
	switch {
	case isScalar(v.Type()):
		scalar, ok := node.(ast.ScalarNode)
		if !ok {
			d.problem(path, line(node), "must be a single value, for example %s", example(v.Type()))
			return
		}
		text := scalar.GetToken().Value
		if literal, ok := node.(*ast.LiteralNode); ok {
			text = literal.Value.Value
		}
		if err := set(v, text); err != nil {
			d.problem(path, line(node), "%v", err)
		}
	case v.Kind() == reflect.Struct:
		d.mapping(path, node, func(key string, at, child ast.Node) { d.field(path, key, at, child, v) })
	case v.Kind() == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		d.mapping(path, node, func(key string, _, child ast.Node) {
			element := reflect.New(v.Type().Elem()).Elem()
			d.value(join(path, key), child, element)
			v.SetMapIndex(reflect.ValueOf(key), element)
		})
	case v.Kind() == reflect.Slice:
		sequence, ok := node.(*ast.SequenceNode)
		if !ok {
			d.problem(path, line(node), "must be a list, for example [%s]", example(v.Type().Elem()))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(sequence.Values), len(sequence.Values)))
		for i, child := range sequence.Values {
			d.value(fmt.Sprintf("%s[%d]", path, i), child, v.Index(i))
		}
	default:
		panic("config: no decoding for " + v.Type().String())
	}
}

// mapping calls each for the keys of node; a key that stands twice is a problem.
func (d *decoder) mapping(path string, node ast.Node, each func(key string, at, child ast.Node)) {
	m, ok := node.(ast.MapNode)
	if !ok {
		d.problem(path, line(node), "must be a mapping (key: value), not %q", node.String())
		return
	}
	for it := m.MapRange(); it.Next(); {
		if it.Key().IsMergeKey() {
			d.problem(path, line(it.Key()), "merge keys (<<) are not supported; write the keys out")
			continue
		}
		each(it.Key().GetToken().Value, it.Key(), it.Value())
	}
}

// field decodes the value of one key of a struct.
func (d *decoder) field(path, key string, at, child ast.Node, v reflect.Value) {
	fields := fieldsOf(v)
	if i := slices.IndexFunc(fields, func(f field) bool { return f.key == key }); i >= 0 {
		d.value(join(path, key), child, fields[i].value)
		return
	}
	if name, isFile := strings.CutSuffix(key, "_file"); isFile {
		if i := slices.IndexFunc(fields, func(f field) bool { return f.key == name && isSecret(f.value.Type()) }); i >= 0 {
			var file string
			d.value(join(path, key), child, reflect.ValueOf(&file).Elem())
			d.fromFile(join(path, key), line(at), file, fields[i].value)
			return
		}
	}
	known := make([]string, len(fields))
	for i, f := range fields {
		known[i] = f.key
	}
	d.problem(join(path, key), line(at), "unknown key%s", suggestion(key, known))
}

func (d *decoder) fromFile(path string, line int, file string, v reflect.Value) {
	content, err := os.ReadFile(file)
	if err != nil {
		d.problem(path, line, "%v; name a file that this process may read", err)
		return
	}
	v.SetString(strings.TrimSpace(string(content)))
}

// environment sets every single value below v that the environment names.
func (d *decoder) environment(path string, v reflect.Value) {
	for _, f := range fieldsOf(v) {
		key := join(path, f.key)
		name := EnvName(key)
		switch {
		case f.value.Kind() == reflect.Struct:
			d.environment(key, f.value)
			continue
		case isSecret(f.value.Type()):
			if file := d.getenv(name + "_FILE"); file != "" {
				d.fromFile(name+"_FILE", 0, file, f.value)
			}
		}
		text := d.getenv(name)
		switch {
		case text == "":
		case f.value.Type() == reflect.TypeFor[[]string]():
			list := strings.Split(text, ",")
			for i := range list {
				list[i] = strings.TrimSpace(list[i])
			}
			f.value.Set(reflect.ValueOf(list))
		case isScalar(f.value.Type()):
			if err := set(f.value, text); err != nil {
				d.problem(name, 0, "%v", err)
			}
		default:
			d.problem(name, 0, "cannot be set from the environment; put %s into the file", key)
		}
	}
}

// EnvName returns the environment variable that overrides a key such as redis.url.
func EnvName(key string) string {
	return "TALLYGATE_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// resolve returns the node that an anchor or alias stands for.
func (d *decoder) resolve(node ast.Node) ast.Node {
	for {
		switch n := node.(type) {
		case *ast.AnchorNode:
			node = n.Value
			d.anchors[n.Name.GetToken().Value] = node
		case *ast.AliasNode:
			target, ok := d.anchors[n.Value.GetToken().Value]
			if !ok {
				return n
			}
			return target
		default:
			return node
		}
	}
}

// field is one key of a struct and where its value goes.
type field struct {
	key   string
	value reflect.Value
}

// fieldsOf returns the keys of v in the order of its declaration, those of
// inlined structs among them.
func fieldsOf(v reflect.Value) []field {
	var fields []field
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() {
			continue
		}
		key, option, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		if option == "inline" {
			fields = append(fields, fieldsOf(v.Field(i))...)
			continue
		}
		fields = append(fields, field{key, v.Field(i)})
	}
	return fields
}

func isSecret(t reflect.Type) bool {
	return t == reflect.TypeFor[Secret]() || t == reflect.TypeFor[SecretURL]()
}

func isScalar(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int64, reflect.Float64:
		return true
	}
	return false
}

// set parses text into v. Its errors say what is expected.
func set(v reflect.Value, text string) error {
	wrong := func() error { return fmt.Errorf("%q is not %s", text, kind(v.Type())) }
	switch {
	case v.Type() == reflect.TypeFor[time.Duration]():
		duration, err := parseDuration(text)
		if err != nil {
			return wrong()
		}
		v.SetInt(int64(duration))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		switch text {
		case "true", "false":
			v.SetBool(text == "true")
		default:
			return wrong()
		}
	case v.Kind() == reflect.Float64:
		number, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return wrong()
		}
		v.SetFloat(number)
	default:
		number, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
		if err != nil {
			return wrong()
		}
		v.SetInt(number)
	}
	return nil
}

var days = regexp.MustCompile(`^(\d+)([dw])`)

// parseDuration reads what time.ParseDuration reads, and days and weeks before it: 7d, 1d12h.
func parseDuration(text string) (time.Duration, error) {
	var whole time.Duration
	for m := days.FindStringSubmatch(text); m != nil; m = days.FindStringSubmatch(text) {
		unit := 24 * time.Hour
		if m[2] == "w" {
			unit *= 7
		}
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil || n > math.MaxInt64/int64(unit)-int64(whole/unit)-1 {
			return 0, fmt.Errorf("%s is too long", m[0])
		}
		whole += time.Duration(n) * unit
		if text = text[len(m[0]):]; text == "" {
			return whole, nil
		}
	}
	rest, err := time.ParseDuration(text)
	if err == nil && rest > math.MaxInt64-whole {
		err = fmt.Errorf("%s is too long", text)
	}
	return whole + rest, err
}

func kind(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a duration, for example 500ms, 10s, 5m, 36h or 7d"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Float64:
		return "a number, for example 0.5"
	}
	return "a whole number, for example 100"
}

func example(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "10s"
	case t.Kind() == reflect.Bool:
		return "true"
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Struct:
		return "{" + t.Field(0).Tag.Get("yaml") + ": …}"
	}
	return "100"
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func line(node ast.Node) int {
	if t := node.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}
