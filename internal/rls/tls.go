package rls

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// TLSFiles name what a server identifies itself with and whom it lets in.
type TLSFiles struct {
	Cert, Key string // PEM
	// ClientCA makes clients show a certificate that one of these authorities signed.
	ClientCA string // PEM; "" lets everybody in
	// ClientName further demands that it bears this name; "" accepts any.
	ClientName string
}

// Config returns the server's TLS configuration. The certificate is read again
// when its files change, so that it can be renewed without a restart.
func (f TLSFiles) Config() (*tls.Config, error) {
	pair := &certificate{files: f}
	if _, err := pair.get(nil); err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, GetCertificate: pair.get}
	if f.ClientCA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("client authorities: %w", err)
	}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("client authorities: %s holds no PEM certificate", f.ClientCA)
	}
	if f.ClientName != "" {
		c.VerifyConnection = func(state tls.ConnectionState) error {
			client := state.PeerCertificates[0]
			if client.VerifyHostname(f.ClientName) == nil {
				return nil
			}
			for _, uri := range client.URIs {
				if uri.String() == f.ClientName {
					return nil
				}
			}
			return fmt.Errorf("the client's certificate does not bear the name %s", f.ClientName)
		}
	}
	return c, nil
}

// certificate is a pair of files, looked at no more often than every certEvery.
type certificate struct {
	files TLSFiles

	mu      sync.Mutex
	checked time.Time
	version []time.Time
	pair    *tls.Certificate
}

const certEvery = 10 * time.Second

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair != nil && time.Since(c.checked) < certEvery {
		return c.pair, nil
	}
	c.checked = time.Now()
	var version []time.Time
	for _, name := range []string{c.files.Cert, c.files.Key} {
		if info, err := os.Stat(name); err == nil {
			version = append(version, info.ModTime())
		}
	}
	if c.pair != nil && slices.Equal(version, c.version) {
		return c.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	switch {
	case err == nil:
		c.pair, c.version = &pair, version
	case c.pair == nil:
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return c.pair, nil // while files are being replaced, the one before
}
