package kafkatest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// KDC is a Kerberos key distribution centre: Apache Kerby, in a Java process.
type KDC struct {
	// Config is the krb5.conf that names it, and the default realm.
	Config string
	Realm  string
	dir    string
}

const kerbyPOM = `<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>kshare.kafkatest</groupId>
  <artifactId>kdc</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kerby</groupId><artifactId>kerb-simplekdc</artifactId><version>2.1.0</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
`

// kdcSource serves until it is killed. Its arguments are a directory, a realm, a
// port, and principals, each with a keytab of its own in the directory.
const kdcSource = `
import java.io.File;
import org.apache.kerby.kerberos.kerb.server.SimpleKdcServer;

public class Main {
    public static void main(String[] args) throws Exception {
        SimpleKdcServer kdc = new SimpleKdcServer();
        kdc.setWorkDir(new File(args[0]));
        kdc.setKdcRealm(args[1]);
        kdc.setKdcHost("127.0.0.1");
        kdc.setKdcTcpPort(Integer.parseInt(args[2]));
        kdc.setAllowUdp(false);
        kdc.init();
        kdc.start();
        for (int i = 3; i < args.length; i++) {
            kdc.createPrincipals(args[i]);
            kdc.exportPrincipal(args[i], new File(args[0], args[i].replace('/', '_') + ".keytab"));
        }
        System.out.println("ready");
        Thread.sleep(Long.MAX_VALUE);
    }
}
`

// StartKDC starts a KDC that knows principals, without their realm, and ends
// with the test.
func StartKDC(tb testing.TB, principals ...string) *KDC {
	tb.Helper()
	Need(tb)
	ctx := tb.Context()
	_, classPath, err := download(ctx, "kerby-2.1.0", "Apache Kerby", []byte(kerbyPOM))
	if err != nil {
		tb.Fatal(err)
	}
	ports, err := freePorts(ctx, 1)
	if err != nil {
		tb.Fatal(err)
	}
	_, port, err := net.SplitHostPort(ports[0])
	if err != nil {
		tb.Fatal(err)
	}
	k := &KDC{Realm: "KSHARE.TEST", dir: tb.TempDir()}
	source := filepath.Join(k.dir, "Main.java")
	if err := os.WriteFile(source, []byte(kdcSource), 0o600); err != nil {
		tb.Fatal(err)
	}
	args := append([]string{"-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classPath, source, k.dir, k.Realm, port}, principals...)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "java", args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	p, err := startProcess(cmd)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.kill(); err != nil {
			tb.Error(err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		_ = p.kill()
		tb.Fatalf("Apache Kerby says %q, %v\n%s", line, err, stderr.Bytes())
	}
	// What Kerby writes names a host that may be another address, and tickets
	// for hosts by address would be looked up in the DNS.
	k.Config = filepath.Join(k.dir, "client.conf")
	text := fmt.Sprintf(`[libdefaults]
  default_realm = %[1]s
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1

[realms]
  %[1]s = {
    kdc = %[2]s
  }
`, k.Realm, ports[0])
	if err := os.WriteFile(k.Config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return k
}

// Keytab is the file with the keys of one of the principals.
func (k *KDC) Keytab(principal string) string {
	name := []byte(principal + ".keytab")
	return filepath.Join(k.dir, string(bytes.ReplaceAll(name, []byte("/"), []byte("_"))))
}
