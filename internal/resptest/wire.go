package resptest

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// readElements reads one value as the elements that a transcript writes: one or,
// if it is an aggregate, several.
func readElements(r *bufio.Reader) ([]string, error) {
	var elements []string
	for open := 1; open > 0; open-- {
		line, err := r.ReadString('\n')
		if err != nil {
			return nil, err
		}
		line, ok := strings.CutSuffix(line, "\r\n")
		if !ok || line == "" {
			return nil, fmt.Errorf("no element of RESP: %.32q", line)
		}
		switch size := sizeOf(line); line[0] {
		case '+', '-', ':', '_', '#', ',', '(':
			// a line of its own
		case '$':
			if size > maxBulk {
				return nil, fmt.Errorf("%d bytes in one string, more than any test should need", size)
			}
			if size >= 0 {
				text := make([]byte, size+len("\r\n"))
				if _, err := io.ReadFull(r, text); err != nil {
					return nil, err
				}
				line = strconv.Quote(string(text[:size]))
			}
		case '*', '~', '>':
			open += max(size, 0)
		case '%':
			open += 2 * max(size, 0)
		default:
			return nil, fmt.Errorf("an element of RESP that is not supported: %.32q", line)
		}
		elements = append(elements, line)
	}
	return elements, nil
}

// maxBulk is the longest string that is read, in bytes.
const maxBulk = 1 << 24

// sizeOf returns the number in the head of a string or an aggregate; -1 stands for
// nil, also where the number is none.
func sizeOf(line string) int {
	n, err := strconv.Atoi(line[1:])
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// writeElement writes an element of a transcript as the wire has it.
func writeElement(w *bufio.Writer, element string) error {
	if !strings.HasPrefix(element, `"`) {
		_, err := w.WriteString(element + "\r\n")
		return err
	}
	text, err := strconv.Unquote(element)
	if err != nil {
		return fmt.Errorf("element %.32s: %w", element, err)
	}
	_, err = fmt.Fprintf(w, "$%d\r\n%s\r\n", len(text), text)
	return err
}

// readRequest reads a command: an array of bulk strings.
func readRequest(r *bufio.Reader) ([]string, error) {
	elements, err := readElements(r)
	if err != nil {
		return nil, err
	}
	args := make([]string, 0, len(elements))
	for _, e := range elements[1:] {
		arg, err := strconv.Unquote(e)
		if err != nil {
			return nil, fmt.Errorf("a request of something else than bulk strings: %.32s", e)
		}
		args = append(args, arg)
	}
	return args, nil
}

// writeRequest writes a command as the wire has it.
func writeRequest(w *bufio.Writer, args []string) error {
	fmt.Fprintf(w, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(w, "$%d\r\n%s\r\n", len(a), a)
	}
	return w.Flush()
}

// printRequest returns a request as a transcript writes it, without its mark.
func printRequest(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = a
		if q := strconv.Quote(a); a == "" || len(q) != len(a)+2 || strings.ContainsAny(a, " ") {
			words[i] = q
		}
	}
	return strings.Join(words, " ")
}
