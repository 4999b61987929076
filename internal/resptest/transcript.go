package resptest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// exchange is a request and its reply.
type exchange struct {
	request string   // as printRequest prints it
	reply   []string // elements
}

const (
	requestMark = "> "
	commentMark = "# "
)

// load reads a transcript. What stands before the first request is a comment.
func load(file string) ([]exchange, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []exchange
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, requestMark):
			all = append(all, exchange{request: strings.TrimPrefix(line, requestMark)})
		case len(all) > 0 && line != "":
			last := &all[len(all)-1]
			last.reply = append(last.reply, line)
		case !strings.HasPrefix(line, commentMark):
			return nil, fmt.Errorf("%s:%d: neither a comment nor a request: %.32q", file, i+1, line)
		}
	}
	return all, nil
}

// save writes a transcript.
func save(file, comment string, all []exchange) error {
	var b strings.Builder
	b.WriteString(commentMark + comment + "\n")
	for _, x := range all {
		b.WriteString(requestMark + x.request + "\n")
		for _, e := range x.reply {
			b.WriteString(e + "\n")
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// difference says where two requests part.
func difference(got, want string) string {
	n := 0
	for n < len(got) && n < len(want) && got[n] == want[n] {
		n++
	}
	return fmt.Sprintf("got  %s\nwant %s\n     %s^", got, want, strings.Repeat(" ", n))
}
