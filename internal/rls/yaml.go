package rls

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Bounds of one file, which aliases could otherwise multiply without end.
const (
	maxNodes = 1 << 20
	maxDepth = 64
)

// reader reads YAML nodes and gathers what is wrong with them.
type reader struct {
	file     string
	problems []Problem
	warnings []Problem
	anchors  map[string]ast.Node
	nodes    int // read so far
	overflow bool
}

func (r *reader) problem(at ast.Node, format string, args ...any) {
	r.problems = append(r.problems, Problem{r.file, lineOf(at), fmt.Sprintf(format, args...)})
}

func (r *reader) warn(at ast.Node, format string, args ...any) {
	r.warnings = append(r.warnings, Problem{r.file, lineOf(at), fmt.Sprintf(format, args...)})
}

// document returns the file's only document, nil when there is none.
func (r *reader) document(src []byte) ast.Node {
	parsed, err := parser.ParseBytes(src, 0)
	if err != nil {
		p := Problem{File: r.file, Text: "not valid YAML: " + err.Error()}
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) {
			p.Line, p.Text = syntax.Token.Position.Line, "not valid YAML: "+syntax.Message
		}
		r.problems = append(r.problems, p)
		return nil
	}
	var body ast.Node
	for _, doc := range parsed.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.CommentType:
		case body != nil:
			r.problem(doc.Body, "a second YAML document begins here; one file holds one domain")
		default:
			body = doc.Body
		}
	}
	if body == nil {
		r.problem(nil, "is empty; a file of rules names a domain and its descriptors")
	}
	return body
}

// resolve returns the node that an anchor or alias stands for.
func (r *reader) resolve(node ast.Node) ast.Node {
	if r.nodes++; r.nodes > maxNodes {
		if !r.overflow {
			r.overflow = true
			r.problem(node, "holds more than %d values, aliases expanded; split it", maxNodes)
		}
		return ast.Null(node.GetToken())
	}
	for range maxDepth {
		switch n := node.(type) {
		case *ast.AnchorNode:
			node = n.Value
			r.anchors[n.Name.GetToken().Value] = node
		case *ast.AliasNode:
			target, ok := r.anchors[n.Value.GetToken().Value]
			if !ok {
				r.problem(n, "there is no anchor &%s before it", n.Value.GetToken().Value)
				return ast.Null(n.GetToken())
			}
			node = target
		case *ast.TagNode:
			node = n.Value
		default:
			return node
		}
	}
	return ast.Null(node.GetToken())
}

// pair is a key of a mapping and its value, resolved.
type pair struct {
	key   string
	at    ast.Node
	value ast.Node
}

// pairs returns the keys of a mapping in their order, merged ones last; null has none.
func (r *reader) pairs(node ast.Node, what string, depth int) []pair {
	node = r.resolve(node)
	if node.Type() == ast.NullType {
		return nil
	}
	m, ok := node.(ast.MapNode)
	if !ok || depth > maxDepth {
		r.problem(node, "%s must be a mapping (key: value)", what)
		return nil
	}
	var own, merged []pair
	for it := m.MapRange(); it.Next(); {
		if !it.Key().IsMergeKey() {
			own = append(own, pair{it.Key().GetToken().Value, it.Key(), r.resolve(it.Value())})
			continue
		}
		from := r.resolve(it.Value())
		parts := []ast.Node{from}
		if list, ok := from.(*ast.SequenceNode); ok {
			parts = list.Values
		}
		for _, part := range parts {
			merged = append(merged, r.pairs(part, "what is merged (<<)", depth+1)...)
		}
	}
	for _, p := range merged {
		if !slices.ContainsFunc(own, func(o pair) bool { return o.key == p.key }) {
			own = append(own, p)
		}
	}
	return own
}

// elsewhere are the keys of envoyproxy/ratelimit's format. It accepts them
// anywhere and ignores those that are misplaced; such files must go on working.
var elsewhere = map[string]string{
	"domain": "the file", "descriptors": "the file or a descriptor", "key": "a descriptor", "value": "a descriptor",
	"rate_limit": "a descriptor", "shadow_mode": "a descriptor", "quota_mode": "a descriptor",
	"detailed_metric": "a descriptor", "value_to_metric": "a descriptor", "share_threshold": "a descriptor", "metadata": "a descriptor",
	"unit": "rate_limit", "requests_per_unit": "rate_limit", "unlimited": "rate_limit", "replaces": "rate_limit",
	"name": "rate_limit or replaces",
}

// fields hands the values of a mapping to those who know their keys.
func (r *reader) fields(node ast.Node, what string, known map[string]func(value ast.Node)) {
	for _, p := range r.pairs(node, what, 0) {
		if read, ok := known[p.key]; ok {
			if p.value.Type() != ast.NullType {
				read(p.value)
			}
			continue
		}
		if place, ok := elsewhere[p.key]; ok {
			r.warn(p.at, "%s has no effect in %s; it belongs into %s", p.key, what, place)
			continue
		}
		r.problem(p.at, "unknown key %q in %s; known here: %s", p.key, what, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
}

// list calls each for the elements of a sequence.
func (r *reader) list(node ast.Node, what string, each func(ast.Node)) {
	sequence, ok := node.(*ast.SequenceNode)
	if !ok {
		r.problem(node, "%s must be a list", what)
		return
	}
	for _, value := range sequence.Values {
		each(r.resolve(value))
	}
}

func (r *reader) text(node ast.Node, what string) string {
	if literal, ok := node.(*ast.LiteralNode); ok {
		return literal.Value.Value
	}
	if _, ok := node.(ast.ScalarNode); !ok {
		r.problem(node, "%s must be a single value", what)
		return ""
	}
	return node.GetToken().Value
}

// boolean reads what YAML 1.1 calls a boolean, as envoyproxy/ratelimit does.
func (r *reader) boolean(node ast.Node, what string) bool {
	switch strings.ToLower(r.text(node, what)) {
	case "true", "yes", "on", "y":
		return true
	case "false", "no", "off", "n":
	default:
		r.problem(node, "%s must be true or false", what)
	}
	return false
}

func (r *reader) number(node ast.Node, what string, least, most uint64) uint64 {
	n, err := strconv.ParseUint(r.text(node, what), 0, 64)
	if err != nil || n < least || n > most {
		r.problem(node, "%s must be a whole number from %d to %d", what, least, most)
		return least
	}
	return n
}

// value returns any node as what encoding/json would make of it.
func (r *reader) value(node ast.Node, depth int) any {
	node = r.resolve(node)
	switch n := node.(type) {
	case *ast.SequenceNode:
		values := make([]any, 0, len(n.Values))
		for _, v := range n.Values {
			if depth < maxDepth {
				values = append(values, r.value(v, depth+1))
			}
		}
		return values
	case ast.MapNode:
		values := map[string]any{}
		for _, p := range r.pairs(node, "metadata", depth) {
			if depth < maxDepth {
				values[p.key] = r.value(p.value, depth+1)
			}
		}
		return values
	case *ast.InfinityNode, *ast.NanNode:
		r.problem(node, "metadata cannot hold a number that is not finite")
	case ast.ScalarNode:
		return n.GetValue()
	}
	return nil
}

func lineOf(node ast.Node) int {
	if node == nil {
		return 0
	}
	if t := node.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}
