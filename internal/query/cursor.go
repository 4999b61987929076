package query

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/tallygate/tallygate/internal/token"
)

// Cursor is where a page ended: its last token and that token's place in the
// order. Every source understands the cursors of the others.
type Cursor struct {
	Sort  string   `json:"s"` // as Sort prints it
	Value int64    `json:"v"` // the figure or time in the order; 0 when sorted by token
	Token token.ID `json:"t"`
}

// After returns the cursor behind a row.
func (s Sort) After(r Row) Cursor {
	f := s.Field
	if f == "" {
		f = Ops
	}
	return Cursor{s.String(), r.Figure(f), r.Token}
}

// String returns what ParseCursor parses.
func (c Cursor) String() string {
	b, _ := json.Marshal(c) // cannot fail
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseCursor parses the cursor of a page in an order. The error wraps ErrCursor.
func ParseCursor(s string, order Sort) (Cursor, error) {
	var c Cursor
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err == nil {
		_, err = token.FromTag(string(c.Token)) // every ID is a valid tag
	}
	if err != nil || c.Value < 0 || c.Value > MaxFigure {
		return Cursor{}, fmt.Errorf("%w: pass the one that came with the page before, unchanged", ErrCursor)
	}
	if c.Sort != order.String() {
		return Cursor{}, fmt.Errorf("%w: it belongs to the order %.32q; keep the order from page to page", ErrCursor, c.Sort)
	}
	return c, nil
}
