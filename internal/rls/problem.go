package rls

import (
	"errors"
	"fmt"
	"strings"
)

// ErrRules is wrapped by the error of rules that are refused.
var ErrRules = errors.New("rate limit rules refused")

// Problem is one thing that is wrong, or has no effect, in a file of rules.
type Problem struct {
	File string
	Line int // 0 when it concerns the file as a whole
	Text string
}

// String returns file, line and text in one line.
func (p Problem) String() string {
	if p.Line == 0 {
		return p.File + ": " + p.Text
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text)
}

// problems is the error of rules that are refused, one line each.
type problems []Problem

func (p problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}
	return ErrRules.Error() + ":\n  " + strings.Join(lines, "\n  ")
}

func (p problems) Unwrap() error { return ErrRules }
