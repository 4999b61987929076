package token_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tallygate/tallygate/internal/token"
)

func ExampleParse() {
	id, _ := token.Parse("Jane {admin}")
	fmt.Println(id)
	fmt.Println(token.Tag("api", id))
	fmt.Println(id.Text())
	// Output:
	// Jane%20%7Badmin%7D
	// {api:Jane%20%7Badmin%7D}
	// Jane {admin}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"", strings.Repeat("x", token.MaxText+1), "a\xff", "a\x00b"} {
		if _, err := token.Parse(text); !errors.Is(err, token.ErrToken) {
			t.Errorf("Parse(%.20q) = %v, want ErrToken", text, err)
		}
	}
	if _, err := token.Parse(strings.Repeat("é", token.MaxText/2)); err != nil {
		t.Errorf("a text of exactly MaxText bytes is refused: %v", err)
	}
}

func TestForeignTagIsTakenLiterally(t *testing.T) {
	id, err := token.FromTag("user name 100%")
	if err != nil || id.Text() != "user name 100%" {
		t.Errorf("FromTag = %q, %v", id, err)
	}
	for _, tag := range []string{"", "a}b", "{", "\xff"} {
		if _, err := token.FromTag(tag); !errors.Is(err, token.ErrToken) {
			t.Errorf("FromTag(%q) = %v, want ErrToken", tag, err)
		}
	}
}

func TestResourceEncodesColons(t *testing.T) {
	r, err := token.ParseResource("v1:search/all")
	if err != nil || r != "v1%3Asearch%2Fall" || token.ResourceText(r) != "v1:search/all" {
		t.Errorf("ParseResource = %q, %v", r, err)
	}
}

// FuzzParse proves that an ID is injective, safe inside a hash tag, and canonical.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"abc", "a b", "{}", "%7B", "100%", "é", "a\nb", "::1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := token.Parse(text)
		if err != nil {
			return
		}
		if got := id.Text(); got != text {
			t.Fatalf("Text(Parse(%q)) = %q", text, got)
		}
		if strings.ContainsAny(string(id), "{} \n\x00") {
			t.Fatalf("ID %q is not safe in a hash tag", id)
		}
		if again, err := token.FromTag(string(id)); err != nil || again != id {
			t.Fatalf("FromTag(%q) = %q, %v", id, again, err)
		}
	})
}
