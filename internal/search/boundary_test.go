package search_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tallygate/tallygate/internal/proctest"
	"github.com/tallygate/tallygate/internal/query"
	"github.com/tallygate/tallygate/internal/query/querytest"
	"github.com/tallygate/tallygate/internal/redistest"
	"github.com/tallygate/tallygate/internal/resptest"
	"github.com/tallygate/tallygate/internal/search"
	"github.com/tallygate/tallygate/internal/token"
)

// everyCall makes each call that an Index has.
func everyCall(t *testing.T, x *search.Index) map[string]error {
	_, status := x.Status(t.Context())
	_, find := x.Search(t.Context(), query.Query{}, querytest.Now)
	_, groups := x.Groups(t.Context(), query.Query{}, query.Policy, querytest.Now)
	return map[string]error{"Status": status, "Search": find, "Groups": groups, "Migrate": x.Migrate(t.Context())}
}

func TestAServerWithoutSearchIsNamedWithItsRemedy(t *testing.T) {
	server := redistest.Start(t)
	for call, err := range everyCall(t, open(t, server.Addr)) {
		if !errors.Is(err, search.ErrNoSearch) || !strings.Contains(err.Error(), "RediSearch module") || !search.Unanswered(err) {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestAUserWhoMayNotSearchIsToldWhatToGrant(t *testing.T) {
	for call, err := range everyCall(t, open(t, answering(t, "-NOPERM User a has no permissions to run the 'ft.info' command\r\n"))) {
		if !errors.Is(err, search.ErrDenied) || !strings.Contains(err.Error(), "+ft.aggregate") || !search.Unanswered(err) {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestAServerThatIsAwayIsDown(t *testing.T) {
	for call, err := range everyCall(t, open(t, proctest.FreeAddr(t))) {
		if !errors.Is(err, search.ErrDown) || !search.Unanswered(err) {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestAServerThatHangsCostsTheTimeout(t *testing.T) {
	server := redistest.Start(t)
	server.Pause()
	defer server.Resume()
	x, err := search.Open(server.Client(), search.Options{Timeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for call, err := range everyCall(t, x) {
		if !errors.Is(err, search.ErrDown) {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// redisearch-go panics at replies that it does not expect.
func TestPanicsOfTheClientAreErrors(t *testing.T) {
	for name, reply := range map[string]string{
		"a field without a type": "*2\r\n$10\r\nattributes\r\n*1\r\n*4\r\n+identifier\r\n+a\r\n+b\r\n+c\r\n",
		"half a pair":            "*3\r\n$10\r\nindex_name\r\n+a\r\n+b\r\n",
		"a row of three":         "*2\r\n:1\r\n*3\r\n+a\r\n+b\r\n+c\r\n",
		"a row that is a number": "*2\r\n:1\r\n:2\r\n",
		"nothing":                "*0\r\n",
	} {
		x := open(t, answering(t, reply))
		failed := 0
		for call, err := range everyCall(t, x) {
			if err == nil {
				continue
			}
			if failed++; !errors.Is(err, search.ErrReply) {
				t.Errorf("%s: %s: %v", name, call, err)
			}
		}
		if failed == 0 {
			t.Errorf("%s: no call minds", name)
		}
	}
}

// answering returns the address of a server that gives one reply to everything.
func answering(t *testing.T, reply string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					if strings.HasPrefix(line, "*") {
						_, _ = c.Write([]byte(reply))
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

func TestOpenRefusesADatabaseThatNoIndexSees(t *testing.T) {
	client := redis.NewClient(&redis.Options{DB: 3})
	defer client.Close()
	if _, err := search.Open(client, search.Options{}); !errors.Is(err, search.ErrUnsuited) || !strings.Contains(err.Error(), "database 0 only") {
		t.Error(err)
	}
}

func TestAClusterIsAskedAtAnyNodeThatAnswers(t *testing.T) {
	server := redistest.Start(t)
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{proctest.FreeAddr(t), server.Addr}})
	defer client.Close()
	x, err := search.Open(client, search.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, err := x.Status(t.Context()); !errors.Is(err, search.ErrNoSearch) { // as only a server that answers says it
		t.Error(err)
	}
}

func TestUsersPasswordsAndTLS(t *testing.T) {
	dir := t.TempDir()
	roots := certificate(t, dir)
	server := redistest.Start(t, "--requirepass", "hunter2", "--user", "reader", "on", ">s3cret", "~*", "&*", "+@all")
	// The same server again, by TLS: redistest itself speaks plainly.
	addr := proctest.FreeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	client := server.Client()
	client.Options().Password = "hunter2"
	for _, set := range [][]any{
		{"AUTH", "hunter2"},
		{"CONFIG", "SET", "tls-cert-file", filepath.Join(dir, "cert.pem"), "tls-key-file", filepath.Join(dir, "key.pem"), "tls-ca-cert-file", filepath.Join(dir, "cert.pem"), "tls-auth-clients", "no", "tls-port", port},
	} {
		if err := client.Do(t.Context(), set...).Err(); err != nil {
			t.Skipf("this Redis cannot do TLS: %v", err)
		}
	}
	for _, c := range []struct {
		url  string
		tls  *tls.Config
		want error
	}{
		{"redis://:hunter2@" + server.Addr, nil, search.ErrNoSearch}, // as it is said by a server that has let us in
		{"redis://reader:s3cret@" + server.Addr, nil, search.ErrNoSearch},
		{"redis://reader:wrong@" + server.Addr, nil, search.ErrRefused},
		{"rediss://:hunter2@" + addr, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}, search.ErrNoSearch},
		{"rediss://:hunter2@" + addr, nil, search.ErrDown}, // nobody vouches for it
	} {
		opts, err := redis.ParseURL(c.url)
		if err != nil {
			t.Fatal(err)
		}
		if c.tls != nil {
			opts.TLSConfig = c.tls
		}
		client := redis.NewClient(opts)
		x, err := search.Open(client, search.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = x.Status(t.Context())
		if !errors.Is(err, c.want) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %v", c.url, err, c.want)
		}
		_, _ = x.Close(), client.Close()
	}
}

// certificate makes one for 127.0.0.1 in dir, and returns what vouches for it.
func certificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}

// rows is a history that answers from a slice.
type rows []query.Row

func (r rows) Search(_ context.Context, q query.Query, now time.Time) (query.Page, error) {
	return querytest.Search(r, q, now)
}

func (r rows) Groups(_ context.Context, q query.Query, by query.Field, now time.Time) ([]query.Group, error) {
	return querytest.Groups(r, q, by, now), nil
}

func TestTheHistoryAnswersWhenTheIndexCannot(t *testing.T) {
	history := rows{{Token: "of-the-history"}}
	server := redistest.Start(t)
	source := search.Prefer(open(t, server.Addr), history, slog.New(slog.DiscardHandler))
	page, err := source.Search(t.Context(), query.Query{}, querytest.Now)
	if err != nil || len(page.Rows) != 1 || page.Rows[0].Token != "of-the-history" {
		t.Errorf("without a module: %+v, %v", page, err)
	}
	if _, err := source.Search(t.Context(), query.Query{After: "!"}, querytest.Now); !errors.Is(err, query.ErrCursor) {
		t.Errorf("a question that is wrong anywhere: %v", err)
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	if _, err := source.Search(left, query.Query{}, querytest.Now); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who has left: %v", err)
	}
}

func TestTheIndexAnswersWhenItCan(t *testing.T) {
	addr := resptest.Start(t)
	x := open(t, addr)
	source := search.Prefer(x, rows{{Token: "of-the-history"}}, slog.New(slog.DiscardHandler))
	write(t, writer(t, addr), query.Row{Token: "of-the-index", Policy: "free"})
	first := func() string {
		t.Helper()
		page, err := source.Search(t.Context(), query.Query{}, querytest.Now)
		if err != nil || len(page.Rows) != 1 {
			t.Fatalf("%+v, %v", page, err)
		}
		return string(page.Rows[0].Token)
	}
	if got := first(); got != "of-the-history" {
		t.Errorf("before there is an index: %s", got)
	}
	migrate(t, x)
	if got := first(); got != "of-the-index" {
		t.Errorf("with an index: %s", got)
	}
	groups, err := source.Groups(t.Context(), query.Query{}, query.Policy, querytest.Now)
	if len(groups) != 1 || groups[0].Value != "free" || err != nil {
		t.Errorf("%+v, %v", groups, err)
	}
}

// FuzzNoWordBreaksOut puts any word wherever a word can stand, on a live server: it
// must find the token that has it, and only that one. Fuzz it with -parallel 1: there
// is one server.
func FuzzNoWordBreaksOut(f *testing.F) {
	addr := resptest.Live(f)
	client, x := writer(f, addr), open(f, addr)
	migrate(f, x)
	for _, word := range []string{"a", `"`, `\`, `\"`, "*", "}", "{", "|", "a b", "-", "@ops:[0 1]", "$a", "é", "\u00a0", "%", "\x01", "nan", "0x1", "'", "){", "~a", "w'a'"} {
		f.Add(word)
	}
	write(f, client, query.Row{Token: "bystander", Owner: "bystander", Labels: []string{"bystander"}})
	f.Fuzz(func(t *testing.T, word string) {
		parsed, err := query.Parse("owner:" + quoted(word) + " label:" + quoted(word) + " token:" + quoted(word))
		if err != nil {
			return // it is no word
		}
		id := token.ID(parsed.Match[0].Values[0])
		row := query.Row{Token: id, Ops: 1, Owner: word, Labels: []string{word}}
		write(t, client, row)
		defer client.Del(t.Context(), "{api:"+string(id)+"}:data")
		for _, text := range []string{
			parsed.String(),
			"ops>0 token:" + quoted(word) + "*",
			"ops>0 -token:bystander* -owner:bystander",
		} {
			q, err := query.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // and behind its own cursor there is nothing
				want, _ := querytest.Search([]query.Row{row}, q, querytest.Now)
				got, err := x.Search(t.Context(), q, querytest.Now)
				if err != nil || !slices.EqualFunc(got.Rows, want.Rows, func(a, b query.Row) bool { return a.Token == b.Token && a.Owner == b.Owner }) {
					t.Fatalf("%q: %+v, %v, want %+v", text, got.Rows, err, want.Rows)
				}
				q.After = q.Sort.After(row).String()
			}
		}
	})
}

func quoted(word string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(word) + `"`
}

func TestKeepSaysOnceWhatItFindsAndEndsWithItsContext(t *testing.T) {
	addr := resptest.Start(t)
	write(t, writer(t, addr), query.Row{Token: "a"})
	var said strings.Builder
	ctx, end := context.WithCancel(t.Context())
	log := slog.New(slog.NewTextHandler(&ending{Builder: &said, end: end}, nil))
	if err := open(t, addr).Keep(ctx, log); err != nil {
		t.Error(err)
	}
	if !strings.Contains(said.String(), "search index is ready") || !strings.Contains(said.String(), "tokens=1") {
		t.Errorf("said %s", said.String())
	}
}

// ending ends something when it is written to.
type ending struct {
	*strings.Builder
	end func()
}

func (e *ending) Write(p []byte) (int, error) {
	e.end()
	return e.Builder.Write(p)
}
